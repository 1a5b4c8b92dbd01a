#include <hyla/gdn.h>

#include <cstddef>

#include "capi/fields.h"
#include "capi/params.h"
#include "capi/status.h"
#include "core/check.h"

namespace hyla::capi {

gdn::DecodeParams params(const hyla_gdn_decode_params* given) {
  const auto c = whole("params", given, offsetof(hyla_gdn_decode_params, gate));
  gdn::DecodeParams p;
  p.q = view("q", c.q);
  p.k = view("k", c.k);
  p.v = view("v", c.v);
  p.state = view("state", c.state);
  p.out = view("out", c.out);
  p.gate = gate(c.gate);
  p.beta = beta(c.beta);
  take_slots(p, c);
  take_numbers(p, c);
  p.norm = gated_norm(c.norm);
  p.impl = c.impl;
  return p;
}

gdn::MtpParams params(const hyla_gdn_mtp_params* given) {
  const auto c = whole("params", given, offsetof(hyla_gdn_mtp_params, gate));
  gdn::MtpParams p;
  p.q = view("q", c.q);
  p.k = view("k", c.k);
  p.v = view("v", c.v);
  p.state = view("state", c.state);
  p.out = view("out", c.out);
  if (c.update_state != HYLA_DEFAULT) {
    p.update_state = switched("update_state", c.update_state, false);
  }
  p.gate = gate(c.gate);
  p.beta = beta(c.beta);
  take_slots(p, c);
  take_sequences(p, c);
  p.states_out = view("states_out", c.states_out);
  p.step_slots = view("step_slots", c.step_slots);
  p.commit_lengths = view("commit_lengths", c.commit_lengths);
  take_numbers(p, c);
  p.norm = gated_norm(c.norm);
  p.impl = c.impl;
  return p;
}

gdn::PrefillParams params(const hyla_gdn_prefill_params* given) {
  const auto c = whole("params", given, offsetof(hyla_gdn_prefill_params, cu_seqlens));
  gdn::PrefillParams p;
  p.q = view("q", c.q);
  p.k = view("k", c.k);
  p.v = view("v", c.v);
  p.out = view("out", c.out);
  take_sequences(p, c);
  p.state = view("state", c.state);
  p.state_out = view("state_out", c.state_out);
  p.update_state = switched("update_state", c.update_state, p.update_state);
  p.gate = gate(c.gate);
  p.beta = beta(c.beta);
  take_slots(p, c);
  p.has_initial_state = view("has_initial_state", c.has_initial_state);
  p.checkpoint_every = c.checkpoint_every;
  p.checkpoint_offsets = view("checkpoint_offsets", c.checkpoint_offsets);
  p.checkpoints = view("checkpoints", c.checkpoints);
  p.checkpoint_starts = view("checkpoint_starts", c.checkpoint_starts);
  p.checkpoint_slots = view("checkpoint_slots", c.checkpoint_slots);
  take_numbers(p, c);
  p.decay_cutoff_log2 = given_if(c.has_decay_cutoff_log2, c.decay_cutoff_log2);
  p.max_length = c.max_length;
  p.host_lengths = view("host_lengths", c.host_lengths);
  p.impl = c.impl;
  return p;
}

Workspace workspace(const hyla_gdn_prefill_params* given, const Context& context) {
  const auto c = whole("params", given, offsetof(hyla_gdn_prefill_params, cu_seqlens));
  return {c.workspace, c.workspace_bytes, context.device};
}

gdn::RecurrenceParams params(const hyla_gdn_recurrence_params* given) {
  const auto c = whole("params", given, offsetof(hyla_gdn_recurrence_params, cu_seqlens));
  gdn::RecurrenceParams p;
  p.qkv = view("qkv", c.qkv);
  p.state = view("state", c.state);
  p.out = view("out", c.out);
  p.key_heads = c.key_heads;
  p.value_heads = c.value_heads;
  p.key_dim = c.key_dim;
  p.value_dim = c.value_dim;
  take_sequences(p, c);
  p.gate = gate(c.gate);
  p.beta = beta(c.beta);
  take_slots(p, c);
  take_numbers(p, c);
  p.impl = c.impl;
  return p;
}

gdn::PrefillBounds bounds(const hyla_gdn_prefill_bounds* given) {
  const auto c = whole("bounds", given, offsetof(hyla_gdn_prefill_bounds, device));
  gdn::PrefillBounds b;
  b.max_sequences = c.max_sequences;
  b.max_tokens = c.max_tokens;
  b.query_heads = c.query_heads;
  b.key_heads = c.key_heads;
  b.value_heads = c.value_heads;
  b.key_dim = c.key_dim;
  b.value_dim = c.value_dim;
  b.io = io_type("bounds.io", c.io);
  b.device = device("bounds.device", c.device);
  return b;
}

}  // namespace hyla::capi

using hyla::capi::guarded;

extern "C" {

hyla_status hyla_gdn_decode(const hyla_gdn_decode_params* params, const hyla_context* context) {
  return guarded(
      [&] { hyla::gdn::decode(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_gdn_mtp(const hyla_gdn_mtp_params* params, const hyla_context* context) {
  return guarded([&] { hyla::gdn::mtp(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_gdn_prefill(const hyla_gdn_prefill_params* params, const hyla_context* context) {
  return guarded([&] {
    const hyla::Context where = hyla::capi::context(context);
    hyla::gdn::prefill(hyla::capi::params(params), hyla::capi::workspace(params, where), where);
  });
}

hyla_status hyla_gdn_recurrence(const hyla_gdn_recurrence_params* params,
                                const hyla_context* context) {
  return guarded(
      [&] { hyla::gdn::recurrence(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_gdn_prefill_workspace_bytes(const hyla_gdn_prefill_bounds* bounds, size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) hyla::core::fail("bytes", "a pointer to the result", "a null pointer");
    *bytes = hyla::gdn::prefill_workspace_bytes(hyla::capi::bounds(bounds));
  });
}

}  // extern "C"
