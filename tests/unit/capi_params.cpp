// The C structs arrive as the C++ ones: every tensor in its place and under its name, zeros as the
// defaults, every switch both ways.
#include "capi/params.h"

#include <hyla/error.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capi/fields.h"

namespace {

using namespace hyla;

template <class Struct>
Struct zeros() {
  Struct c{};
  c.struct_size = sizeof c;
  return c;
}

// One tensor of a C struct and where it must arrive.
template <class Struct, class Params>
struct Field {
  std::string name;
  std::function<DLTensor&(Struct&)> from;
  std::function<const TensorView&(const Params&)> to;
};

template <class Struct, class Params>
class Mapping {
 public:
  Mapping& add(std::string name, DLTensor Struct::*from, TensorView Params::*to) {
    fields_.push_back({std::move(name), [from](Struct& c) -> DLTensor& { return c.*from; },
                       [to](const Params& p) -> const TensorView& { return p.*to; }});
    return *this;
  }
  // A member of a member.
  template <class Part, class PartParams>
  Mapping& add(std::string name, Part Struct::*part, DLTensor Part::*from,
               PartParams Params::*part_params, TensorView PartParams::*to) {
    fields_.push_back({std::move(name), [=](Struct& c) -> DLTensor& { return c.*part.*from; },
                       [=](const Params& p) -> const TensorView& { return p.*part_params.*to; }});
    return *this;
  }

  // All at once with a place and size of their own, so that any mix-up shows; then each one broken.
  void check() const {
    std::array<float, 64> memory{};
    std::array<std::int64_t, 64> sizes{};
    Struct c = zeros<Struct>();
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      sizes[i] = static_cast<std::int64_t>(i) + 1;
      DLTensor& tensor = fields_[i].from(c);
      tensor.data = &memory[i];
      tensor.device.device_type = kDLCPU;
      tensor.ndim = 1;
      tensor.dtype = {2, 32, 1};
      tensor.shape = &sizes[i];
    }
    const Params p = capi::params(&c);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      EXPECT_EQ(fields_[i].to(p).data, &memory[i]) << fields_[i].name;
      EXPECT_EQ(fields_[i].to(p).shape[0], sizes[i]) << fields_[i].name;
    }
    const Struct nothing = zeros<Struct>();
    const Params absent = capi::params(&nothing);
    for (const auto& field : fields_) {
      EXPECT_FALSE(field.to(absent).present()) << field.name;
      Struct broken = c;
      field.from(broken).ndim = 7;
      try {
        capi::params(&broken);
        ADD_FAILURE() << field.name;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument(), field.name);
      }
    }
  }

 private:
  std::vector<Field<Struct, Params>> fields_;
};

template <class Struct, class Params>
void add_slots(Mapping<Struct, Params>& mapping) {
  mapping.add("read_slots", &Struct::read_slots, &Params::read_slots)
      .add("read_columns", &Struct::read_columns, &Params::read_columns)
      .add("write_slots", &Struct::write_slots, &Params::write_slots);
}

template <class Struct, class Params>
void add_sequences(Mapping<Struct, Params>& mapping) {
  mapping.add("cu_seqlens", &Struct::cu_seqlens, &Params::cu_seqlens)
      .add("starts", &Struct::starts, &Params::starts)
      .add("lengths", &Struct::lengths, &Params::lengths);
}

template <class Struct, class Params>
void add_gates(Mapping<Struct, Params>& mapping) {
  mapping.add("gate", &Struct::gate, &hyla_gate::value, &Params::gate, &gdn::Gate::value)
      .add("A_log", &Struct::gate, &hyla_gate::A_log, &Params::gate, &gdn::Gate::A_log)
      .add("dt_bias", &Struct::gate, &hyla_gate::dt_bias, &Params::gate, &gdn::Gate::dt_bias)
      .add("beta", &Struct::beta, &hyla_beta::value, &Params::beta, &gdn::Beta::value);
}

template <class Struct, class Params>
void add_norm(Mapping<Struct, Params>& mapping) {
  mapping.add("norm.z", &Struct::norm, &hyla_gated_norm::z, &Params::norm, &norm::GatedNorm::z)
      .add("norm.weight", &Struct::norm, &hyla_gated_norm::weight, &Params::norm,
           &norm::GatedNorm::weight);
}

template <class Struct, class Params>
void add_cache(Mapping<Struct, Params>& mapping) {
  using C = hyla_kv_cache;
  using P = attention::KvCache;
  mapping.add("cache.k", &Struct::cache, &C::k, &Params::cache, &P::k)
      .add("cache.v", &Struct::cache, &C::v, &Params::cache, &P::v)
      .add("cache.k_scales", &Struct::cache, &C::k_scales, &Params::cache, &P::k_scales)
      .add("cache.v_scales", &Struct::cache, &C::v_scales, &Params::cache, &P::v_scales)
      .add("cache.cu_kv", &Struct::cache, &C::cu_kv, &Params::cache, &P::cu_kv)
      .add("cache.page_table", &Struct::cache, &C::page_table, &Params::cache, &P::page_table);
}

template <class Struct, class Params>
void add_qkv(Mapping<Struct, Params>& mapping) {
  mapping.add("q", &Struct::q, &Params::q)
      .add("k", &Struct::k, &Params::k)
      .add("v", &Struct::v, &Params::v)
      .add("state", &Struct::state, &Params::state)
      .add("out", &Struct::out, &Params::out);
}

TEST(CapiTensors, GdnDecode) {
  Mapping<hyla_gdn_decode_params, gdn::DecodeParams> mapping;
  add_qkv(mapping);
  add_gates(mapping);
  add_slots(mapping);
  add_norm(mapping);
  mapping.check();
}

TEST(CapiTensors, GdnMtp) {
  using C = hyla_gdn_mtp_params;
  using P = gdn::MtpParams;
  Mapping<C, P> mapping;
  add_qkv(mapping);
  add_gates(mapping);
  add_slots(mapping);
  add_sequences(mapping);
  add_norm(mapping);
  mapping.add("states_out", &C::states_out, &P::states_out)
      .add("step_slots", &C::step_slots, &P::step_slots)
      .add("commit_lengths", &C::commit_lengths, &P::commit_lengths)
      .check();
}

TEST(CapiTensors, GdnPrefill) {
  using C = hyla_gdn_prefill_params;
  using P = gdn::PrefillParams;
  Mapping<C, P> mapping;
  add_qkv(mapping);
  add_gates(mapping);
  add_slots(mapping);
  add_sequences(mapping);
  mapping.add("state_out", &C::state_out, &P::state_out)
      .add("has_initial_state", &C::has_initial_state, &P::has_initial_state)
      .add("checkpoint_offsets", &C::checkpoint_offsets, &P::checkpoint_offsets)
      .add("checkpoints", &C::checkpoints, &P::checkpoints)
      .add("checkpoint_starts", &C::checkpoint_starts, &P::checkpoint_starts)
      .add("checkpoint_slots", &C::checkpoint_slots, &P::checkpoint_slots)
      .add("host_lengths", &C::host_lengths, &P::host_lengths)
      .check();
}

TEST(CapiTensors, GdnRecurrence) {
  using C = hyla_gdn_recurrence_params;
  using P = gdn::RecurrenceParams;
  Mapping<C, P> mapping;
  add_gates(mapping);
  add_slots(mapping);
  add_sequences(mapping);
  mapping.add("qkv", &C::qkv, &P::qkv)
      .add("state", &C::state, &P::state)
      .add("out", &C::out, &P::out)
      .check();
}

template <class Struct, class Params>
void add_conv(Mapping<Struct, Params>& mapping) {
  add_slots(mapping);
  add_sequences(mapping);
  mapping.add("x", &Struct::x, &Params::x)
      .add("weight", &Struct::weight, &Params::weight)
      .add("out", &Struct::out, &Params::out)
      .add("state", &Struct::state, &Params::state)
      .add("bias", &Struct::bias, &Params::bias)
      .add("window_offsets", &Struct::window_offsets, &Params::window_offsets);
}

TEST(CapiTensors, Conv) {
  using C = hyla_conv_prefill_params;
  using P = conv::PrefillParams;
  Mapping<C, P> prefill;
  add_conv(prefill);
  prefill.add("has_initial_state", &C::has_initial_state, &P::has_initial_state)
      .add("checkpoint_offsets", &C::checkpoint_offsets, &P::checkpoint_offsets)
      .add("checkpoint_slots", &C::checkpoint_slots, &P::checkpoint_slots)
      .check();
  Mapping<hyla_conv_update_params, conv::UpdateParams> update;
  add_conv(update);
  update
      .add("commit_lengths", &hyla_conv_update_params::commit_lengths,
           &conv::UpdateParams::commit_lengths)
      .check();
}

TEST(CapiTensors, NormGatedRms) {
  using C = hyla_norm_gated_rms_params;
  using P = norm::GatedRmsParams;
  Mapping<C, P>()
      .add("x", &C::x, &P::x)
      .add("z", &C::z, &P::z)
      .add("weight", &C::weight, &P::weight)
      .add("out", &C::out, &P::out)
      .check();
}

TEST(CapiTensors, Attention) {
  using C = hyla_attention_run_params;
  using P = attention::RunParams;
  Mapping<C, P> run;
  add_sequences(run);
  add_cache(run);
  run.add("q", &C::q, &P::q)
      .add("out", &C::out, &P::out)
      .add("kv_lengths", &C::kv_lengths, &P::kv_lengths)
      .add("sinks", &C::sinks, &P::sinks)
      .add("lse", &C::lse, &P::lse)
      .check();
  using A = hyla_attention_append_params;
  using Q = attention::AppendParams;
  Mapping<A, Q> append;
  add_sequences(append);
  add_cache(append);
  append.add("k", &A::k, &Q::k)
      .add("v", &A::v, &Q::v)
      .add("kv_lengths", &A::kv_lengths, &Q::kv_lengths)
      .add("rope.cos", &A::rope, &hyla_rope::cos, &Q::rope, &attention::Rope::cos)
      .add("rope.sin", &A::rope, &hyla_rope::sin, &Q::rope, &attention::Rope::sin)
      .add("slots", &A::slots, &Q::slots)
      .add("positions", &A::positions, &Q::positions)
      .check();
  using M = hyla_attention_merge_params;
  using R = attention::MergeParams;
  Mapping<M, R>()
      .add("a", &M::a, &R::a)
      .add("a_lse", &M::a_lse, &R::a_lse)
      .add("b", &M::b, &R::b)
      .add("b_lse", &M::b_lse, &R::b_lse)
      .add("out", &M::out, &R::out)
      .add("lse", &M::lse, &R::lse)
      .check();
}

// Numbers and switches

template <class Struct, class Params>
void check_gdn_numbers() {
  Struct c = zeros<Struct>();
  Params p = capi::params(&c);
  EXPECT_EQ(p.layout, Params().layout);
  EXPECT_EQ(p.l2norm, Params().l2norm);
  EXPECT_EQ(p.l2norm_eps, Params().l2norm_eps);
  EXPECT_EQ(p.first_slot, 0);
  EXPECT_FALSE(p.scale.has_value());
  EXPECT_EQ(p.gate.kind, gdn::Gate::Kind::kNone);
  EXPECT_EQ(p.beta.kind, gdn::Beta::Kind::kNone);
  EXPECT_EQ(p.impl, nullptr);
  c.scale = 7;
  EXPECT_FALSE(capi::params(&c).scale.has_value());
  c.has_scale = 1;
  c.layout = HYLA_STATE_KV;
  c.l2norm = HYLA_ON;
  c.l2norm_eps = 0.5;
  c.first_slot = 3;
  c.gate.kind = HYLA_GATE_LOG;
  c.beta.kind = HYLA_BETA_LOGIT;
  c.impl = "name";
  p = capi::params(&c);
  EXPECT_EQ(p.scale, 7);
  EXPECT_EQ(p.layout, gdn::StateLayout::kKV);
  EXPECT_TRUE(p.l2norm);
  EXPECT_EQ(p.l2norm_eps, 0.5);
  EXPECT_EQ(p.first_slot, 3);
  EXPECT_EQ(p.gate.kind, gdn::Gate::Kind::kLog);
  EXPECT_EQ(p.beta.kind, gdn::Beta::Kind::kLogit);
  EXPECT_STREQ(p.impl, "name");
  c.layout = HYLA_STATE_VK;
  c.l2norm = HYLA_OFF;
  c.gate.kind = HYLA_GATE_RAW;
  c.beta.kind = HYLA_BETA_PROBABILITY;
  p = capi::params(&c);
  EXPECT_EQ(p.layout, gdn::StateLayout::kVK);
  EXPECT_FALSE(p.l2norm);
  EXPECT_EQ(p.gate.kind, gdn::Gate::Kind::kRaw);
  EXPECT_EQ(p.beta.kind, gdn::Beta::Kind::kProbability);
}

TEST(CapiNumbers, Gdn) {
  check_gdn_numbers<hyla_gdn_decode_params, gdn::DecodeParams>();
  check_gdn_numbers<hyla_gdn_mtp_params, gdn::MtpParams>();
  check_gdn_numbers<hyla_gdn_prefill_params, gdn::PrefillParams>();
  check_gdn_numbers<hyla_gdn_recurrence_params, gdn::RecurrenceParams>();
}

TEST(CapiNumbers, FusedNorm) {
  auto c = zeros<hyla_gdn_decode_params>();
  EXPECT_EQ(capi::params(&c).norm.eps, norm::GatedNorm().eps);
  EXPECT_EQ(capi::params(&c).norm.gate, norm::GatedNorm().gate);
  c.norm.eps = 0.25;
  c.norm.gate = HYLA_ACTIVATION_SIGMOID;
  EXPECT_EQ(capi::params(&c).norm.eps, 0.25);
  EXPECT_EQ(capi::params(&c).norm.gate, norm::Activation::kSigmoid);
}

TEST(CapiNumbers, UpdateState) {
  auto mtp = zeros<hyla_gdn_mtp_params>();
  EXPECT_FALSE(capi::params(&mtp).update_state.has_value());
  mtp.update_state = HYLA_ON;
  EXPECT_EQ(capi::params(&mtp).update_state, true);
  mtp.update_state = HYLA_OFF;
  EXPECT_EQ(capi::params(&mtp).update_state, false);
  auto prefill = zeros<hyla_gdn_prefill_params>();
  EXPECT_EQ(capi::params(&prefill).update_state, gdn::PrefillParams().update_state);
  prefill.update_state = HYLA_OFF;
  EXPECT_FALSE(capi::params(&prefill).update_state);
}

TEST(CapiNumbers, Prefill) {
  auto c = zeros<hyla_gdn_prefill_params>();
  c.checkpoint_every = 128;
  c.decay_cutoff_log2 = 30;
  EXPECT_FALSE(capi::params(&c).decay_cutoff_log2.has_value());
  c.has_decay_cutoff_log2 = 1;
  EXPECT_EQ(capi::params(&c).decay_cutoff_log2, 30);
  EXPECT_EQ(capi::params(&c).checkpoint_every, 128);
  c.max_length = 300;
  EXPECT_EQ(capi::params(&c).max_length, 300);
  c.workspace = &c;
  c.workspace_bytes = 17;
  Context context;
  context.device = Device::cuda(2);
  const Workspace workspace = capi::workspace(&c, context);
  EXPECT_EQ(workspace.data, &c);
  EXPECT_EQ(workspace.bytes, 17u);
  EXPECT_EQ(workspace.device, Device::cuda(2));
}

TEST(CapiNumbers, Recurrence) {
  auto c = zeros<hyla_gdn_recurrence_params>();
  c.key_heads = 2;
  c.value_heads = 4;
  c.key_dim = 8;
  c.value_dim = 16;
  const gdn::RecurrenceParams p = capi::params(&c);
  EXPECT_EQ(p.key_heads, 2);
  EXPECT_EQ(p.value_heads, 4);
  EXPECT_EQ(p.key_dim, 8);
  EXPECT_EQ(p.value_dim, 16);
}

TEST(CapiNumbers, Conv) {
  auto prefill = zeros<hyla_conv_prefill_params>();
  auto update = zeros<hyla_conv_update_params>();
  EXPECT_EQ(capi::params(&prefill).activation, conv::PrefillParams().activation);
  EXPECT_EQ(capi::params(&update).activation, conv::UpdateParams().activation);
  prefill.activation = update.activation = HYLA_ACTIVATION_NONE;
  prefill.first_slot = update.first_slot = 5;
  EXPECT_EQ(capi::params(&prefill).activation, conv::Activation::kNone);
  EXPECT_EQ(capi::params(&update).activation, conv::Activation::kNone);
  EXPECT_EQ(capi::params(&prefill).first_slot, 5);
  EXPECT_EQ(capi::params(&update).first_slot, 5);
}

TEST(CapiNumbers, Attention) {
  auto c = zeros<hyla_attention_run_params>();
  attention::RunParams p = capi::params(&c);
  EXPECT_EQ(p.causal, attention::RunParams().causal);
  EXPECT_FALSE(p.scale.has_value());
  EXPECT_EQ(p.cache.kind, attention::KvCache::Kind::kNone);
  EXPECT_EQ(p.cache.layout, attention::KvCache().layout);
  c.causal = HYLA_OFF;
  c.window = 11;
  c.chunk = 12;
  c.softcap = 13;
  c.scale = 14;
  c.has_scale = 1;
  c.cache.kind = HYLA_KV_RAGGED;
  c.cache.layout = HYLA_KV_HND;
  p = capi::params(&c);
  EXPECT_FALSE(p.causal);
  EXPECT_EQ(p.window, 11);
  EXPECT_EQ(p.chunk, 12);
  EXPECT_EQ(p.softcap, 13);
  EXPECT_EQ(p.scale, 14);
  EXPECT_EQ(p.cache.kind, attention::KvCache::Kind::kRagged);
  EXPECT_EQ(p.cache.layout, attention::KvLayout::kHND);
  auto append = zeros<hyla_attention_append_params>();
  append.rope.interleaved = 1;
  EXPECT_TRUE(capi::params(&append).rope.interleaved);
  EXPECT_FALSE(capi::params(&append).given_scales);
  append.given_scales = 1;
  EXPECT_TRUE(capi::params(&append).given_scales);
}

TEST(CapiNumbers, Bounds) {
  auto prefill = zeros<hyla_gdn_prefill_bounds>();
  EXPECT_EQ(capi::bounds(&prefill).io, gdn::PrefillBounds().io);
  EXPECT_EQ(capi::bounds(&prefill).device, Device::cpu());
  prefill.max_sequences = 1;
  prefill.max_tokens = 2;
  prefill.query_heads = 3;
  prefill.key_heads = 4;
  prefill.value_heads = 5;
  prefill.key_dim = 6;
  prefill.value_dim = 7;
  prefill.io = {2, 16, 1};
  prefill.device.device_type = kDLCUDA;
  prefill.device.device_id = 1;
  const gdn::PrefillBounds b = capi::bounds(&prefill);
  EXPECT_EQ((std::array{b.max_sequences, b.max_tokens, b.query_heads, b.key_heads, b.value_heads,
                        b.key_dim, b.value_dim}),
            (std::array<std::int64_t, 7>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(b.io, DType::kFloat16);
  EXPECT_EQ(b.device, Device::cuda(1));
  auto run = zeros<hyla_attention_run_bounds>();
  run.max_sequences = 1;
  run.max_tokens = 2;
  run.max_kv_length = 3;
  run.query_heads = 4;
  run.kv_heads = 5;
  run.head_dim = 6;
  run.value_dim = 7;
  const attention::RunBounds a = capi::bounds(&run);
  EXPECT_EQ((std::array{a.max_sequences, a.max_tokens, a.max_kv_length, a.query_heads, a.kv_heads,
                        a.head_dim, a.value_dim}),
            (std::array<std::int64_t, 7>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(a.io, attention::RunBounds().io);
  EXPECT_EQ(a.cache, attention::RunBounds().cache);
  run.cache = {0, 8, 1};
  EXPECT_EQ(capi::bounds(&run).cache, DType::kInt8);
}

TEST(CapiNumbers, Context) {
  const Context plain = capi::context(nullptr);
  EXPECT_EQ(plain.device, Device::cpu());
  EXPECT_FALSE(plain.stream.present());
  auto c = zeros<hyla_context>();
  c.device.device_type = kDLCUDA;
  c.device.device_id = 3;
  c.threads = 4;
  c.has_stream = 1;
  EXPECT_TRUE(capi::context(&c).stream.present());
  EXPECT_EQ(capi::context(&c).stream.handle(), nullptr);
  c.stream = &c;
  c.batch_invariant = 1;
  Context context = capi::context(&c);
  EXPECT_EQ(context.device, Device::cuda(3));
  EXPECT_EQ(context.stream.handle(), &c);
  EXPECT_EQ(context.threads, 4);
  EXPECT_TRUE(context.batch_invariant);
  EXPECT_FALSE(context.programmatic_launch);
  c.batch_invariant = 0;
  c.programmatic_launch = 1;
  context = capi::context(&c);
  EXPECT_FALSE(context.batch_invariant);
  EXPECT_TRUE(context.programmatic_launch);
}

}  // namespace
