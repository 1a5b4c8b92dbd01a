#include <hyla/conv.h>

#include <cstddef>

#include "capi/fields.h"
#include "capi/params.h"
#include "capi/status.h"

namespace hyla::capi {
namespace {

template <class Params, class C>
void take_common(Params& p, const C& c) {
  p.x = view("x", c.x);
  p.weight = view("weight", c.weight);
  p.out = view("out", c.out);
  p.state = view("state", c.state);
  p.bias = view("bias", c.bias);
  take_sequences(p, c);
  take_slots(p, c);
  p.window_offsets = view("window_offsets", c.window_offsets);
  p.activation = conv_activation(c.activation);
  p.impl = c.impl;
}

}  // namespace

conv::PrefillParams params(const hyla_conv_prefill_params* given) {
  const auto c = whole("params", given, offsetof(hyla_conv_prefill_params, state));
  conv::PrefillParams p;
  take_common(p, c);
  p.has_initial_state = view("has_initial_state", c.has_initial_state);
  p.checkpoint_offsets = view("checkpoint_offsets", c.checkpoint_offsets);
  p.checkpoint_slots = view("checkpoint_slots", c.checkpoint_slots);
  return p;
}

conv::UpdateParams params(const hyla_conv_update_params* given) {
  const auto c = whole("params", given, offsetof(hyla_conv_update_params, bias));
  conv::UpdateParams p;
  take_common(p, c);
  p.commit_lengths = view("commit_lengths", c.commit_lengths);
  return p;
}

}  // namespace hyla::capi

using hyla::capi::guarded;

extern "C" {

hyla_status hyla_conv_prefill(const hyla_conv_prefill_params* params, const hyla_context* context) {
  return guarded(
      [&] { hyla::conv::prefill(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_conv_update(const hyla_conv_update_params* params, const hyla_context* context) {
  return guarded(
      [&] { hyla::conv::update(hyla::capi::params(params), hyla::capi::context(context)); });
}

}  // extern "C"
