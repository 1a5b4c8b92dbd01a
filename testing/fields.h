// Every field of every params struct, by the name that its error messages use. Copying a call to
// other memory, recording it and replaying it are loops over this list.
//
// for_each_field(params, visit) calls visit(name, view, Access) for tensors and visit(name, value)
// for numbers, switches and enumerations. `impl` is not among them: it says who computes, not what.
#pragma once

#include <hyla/attention.h>
#include <hyla/attention_merge.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <array>
#include <concepts>
#include <string_view>
#include <type_traits>

namespace hyla::testing {

// kHost: read, and on the CPU wherever the other tensors are.
enum class Access { kRead, kWrite, kHost };

template <class P, class T>
concept ParamsOf = std::same_as<std::remove_const_t<P>, T>;

// Names of enumerators in the order of their values.
constexpr std::array<std::string_view, 2> enum_names(gdn::StateLayout) { return {"kv", "vk"}; }
constexpr std::array<std::string_view, 4> enum_names(gdn::Gate::Kind) {
  return {"none", "linear", "log", "raw"};
}
constexpr std::array<std::string_view, 3> enum_names(gdn::Beta::Kind) {
  return {"none", "prob", "logit"};
}
constexpr std::array<std::string_view, 2> enum_names(norm::Activation) {
  return {"silu", "sigmoid"};
}

constexpr std::array<std::string_view, 2> enum_names(conv::Activation) { return {"none", "silu"}; }
constexpr std::array<std::string_view, 4> enum_names(attention::KvCache::Kind) {
  return {"none", "dense", "ragged", "paged"};
}
constexpr std::array<std::string_view, 2> enum_names(attention::KvLayout) { return {"nhd", "hnd"}; }

namespace detail {

void gate_fields(auto& p, auto& visit) {
  visit("gate.kind", p.gate.kind);
  visit("gate", p.gate.value, Access::kRead);
  visit("A_log", p.gate.A_log, Access::kRead);
  visit("dt_bias", p.gate.dt_bias, Access::kRead);
  visit("beta.kind", p.beta.kind);
  visit("beta", p.beta.value, Access::kRead);
}

void slot_fields(auto& p, auto& visit) {
  visit("read_slots", p.read_slots, Access::kRead);
  visit("read_columns", p.read_columns, Access::kRead);
  visit("write_slots", p.write_slots, Access::kRead);
  visit("first_slot", p.first_slot);
}

void sequence_fields(auto& p, auto& visit) {
  visit("cu_seqlens", p.cu_seqlens, Access::kRead);
  visit("starts", p.starts, Access::kRead);
  visit("lengths", p.lengths, Access::kRead);
}

void scalar_fields(auto& p, auto& visit) {
  visit("layout", p.layout);
  visit("scale", p.scale);
  visit("l2norm", p.l2norm);
  visit("l2norm_eps", p.l2norm_eps);
}

void qkv_fields(auto& p, auto& visit) {
  visit("q", p.q, Access::kRead);
  visit("k", p.k, Access::kRead);
  visit("v", p.v, Access::kRead);
  visit("state", p.state, Access::kWrite);
  visit("out", p.out, Access::kWrite);
}

void norm_fields(auto& p, auto& visit) {
  visit("norm.z", p.norm.z, Access::kRead);
  visit("norm.weight", p.norm.weight, Access::kRead);
  visit("norm.eps", p.norm.eps);
  visit("norm.gate", p.norm.gate);
}

void cache_fields(auto& p, auto& visit, Access access, Access scales) {
  visit("cache.kind", p.cache.kind);
  visit("cache.layout", p.cache.layout);
  visit("cache.k", p.cache.k, access);
  visit("cache.v", p.cache.v, access);
  visit("cache.k_scales", p.cache.k_scales, scales);
  visit("cache.v_scales", p.cache.v_scales, scales);
  visit("cache.cu_kv", p.cache.cu_kv, Access::kRead);
  visit("cache.page_table", p.cache.page_table, Access::kRead);
}

void conv_fields(auto& p, auto& visit) {
  visit("x", p.x, Access::kRead);
  visit("weight", p.weight, Access::kRead);
  visit("out", p.out, Access::kWrite);
  visit("state", p.state, Access::kWrite);
  visit("bias", p.bias, Access::kRead);
  sequence_fields(p, visit);
  slot_fields(p, visit);
  visit("window_offsets", p.window_offsets, Access::kRead);
  visit("activation", p.activation);
}

}  // namespace detail

template <ParamsOf<gdn::DecodeParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  detail::qkv_fields(p, visit);
  detail::gate_fields(p, visit);
  detail::slot_fields(p, visit);
  detail::scalar_fields(p, visit);
  detail::norm_fields(p, visit);
}

template <ParamsOf<gdn::MtpParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  detail::qkv_fields(p, visit);
  visit("update_state", p.update_state);
  detail::gate_fields(p, visit);
  detail::slot_fields(p, visit);
  detail::sequence_fields(p, visit);
  visit("states_out", p.states_out, Access::kWrite);
  visit("step_slots", p.step_slots, Access::kRead);
  visit("commit_lengths", p.commit_lengths, Access::kRead);
  detail::scalar_fields(p, visit);
  detail::norm_fields(p, visit);
}

template <ParamsOf<gdn::PrefillParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  detail::qkv_fields(p, visit);
  visit("state_out", p.state_out, Access::kWrite);
  visit("update_state", p.update_state);
  detail::gate_fields(p, visit);
  detail::slot_fields(p, visit);
  detail::sequence_fields(p, visit);
  visit("max_length", p.max_length);
  visit("host_lengths", p.host_lengths, Access::kHost);
  visit("has_initial_state", p.has_initial_state, Access::kRead);
  visit("checkpoint_every", p.checkpoint_every);
  visit("checkpoint_offsets", p.checkpoint_offsets, Access::kRead);
  visit("checkpoints", p.checkpoints, Access::kWrite);
  visit("checkpoint_starts", p.checkpoint_starts, Access::kRead);
  visit("checkpoint_slots", p.checkpoint_slots, Access::kRead);
  detail::scalar_fields(p, visit);
  visit("decay_cutoff_log2", p.decay_cutoff_log2);
}

template <ParamsOf<gdn::RecurrenceParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  visit("qkv", p.qkv, Access::kRead);
  visit("state", p.state, Access::kWrite);
  visit("out", p.out, Access::kWrite);
  visit("key_heads", p.key_heads);
  visit("value_heads", p.value_heads);
  visit("key_dim", p.key_dim);
  visit("value_dim", p.value_dim);
  detail::gate_fields(p, visit);
  detail::slot_fields(p, visit);
  detail::sequence_fields(p, visit);
  detail::scalar_fields(p, visit);
}

template <ParamsOf<conv::PrefillParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  detail::conv_fields(p, visit);
  visit("has_initial_state", p.has_initial_state, Access::kRead);
  visit("checkpoint_offsets", p.checkpoint_offsets, Access::kRead);
  visit("checkpoint_slots", p.checkpoint_slots, Access::kRead);
}

template <ParamsOf<conv::UpdateParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  detail::conv_fields(p, visit);
  visit("commit_lengths", p.commit_lengths, Access::kRead);
}

template <ParamsOf<norm::GatedRmsParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  visit("x", p.x, Access::kRead);
  visit("z", p.z, Access::kRead);
  visit("weight", p.weight, Access::kRead);
  visit("out", p.out, Access::kWrite);
  visit("eps", p.eps);
  visit("gate", p.gate);
}

template <ParamsOf<attention::RunParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  visit("q", p.q, Access::kRead);
  visit("out", p.out, Access::kWrite);
  detail::cache_fields(p, visit, Access::kRead, Access::kRead);
  detail::sequence_fields(p, visit);
  visit("kv_lengths", p.kv_lengths, Access::kRead);
  visit("causal", p.causal);
  visit("window", p.window);
  visit("chunk", p.chunk);
  visit("sinks", p.sinks, Access::kRead);
  visit("softcap", p.softcap);
  visit("scale", p.scale);
  visit("lse", p.lse, Access::kWrite);
}

template <ParamsOf<attention::AppendParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  visit("k", p.k, Access::kRead);
  visit("v", p.v, Access::kRead);
  detail::cache_fields(p, visit, Access::kWrite, p.given_scales ? Access::kRead : Access::kWrite);
  detail::sequence_fields(p, visit);
  visit("kv_lengths", p.kv_lengths, Access::kRead);
  visit("rope.cos", p.rope.cos, Access::kRead);
  visit("rope.sin", p.rope.sin, Access::kRead);
  visit("rope.interleaved", p.rope.interleaved);
  visit("given_scales", p.given_scales);
  visit("slots", p.slots, Access::kRead);
  visit("positions", p.positions, Access::kRead);
}

template <ParamsOf<attention::MergeParams> P, class Visit>
void for_each_field(P& p, Visit&& visit) {
  visit("a", p.a, Access::kRead);
  visit("a_lse", p.a_lse, Access::kRead);
  visit("b", p.b, Access::kRead);
  visit("b_lse", p.b_lse, Access::kRead);
  visit("out", p.out, Access::kWrite);
  visit("lse", p.lse, Access::kWrite);
}

// The tensors alone: visit(name, view, Access).
template <class P, class Visit>
void for_each_tensor(P& params, Visit&& visit) {
  for_each_field(params, [&](const char* name, auto& field, auto... access) {
    if constexpr (sizeof...(access) == 1) visit(name, field, access...);
  });
}

}  // namespace hyla::testing
