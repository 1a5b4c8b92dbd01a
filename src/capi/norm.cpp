#include <hyla/norm.h>

#include <cstddef>

#include "capi/fields.h"
#include "capi/params.h"
#include "capi/status.h"

namespace hyla::capi {

norm::GatedRmsParams params(const hyla_norm_gated_rms_params* given) {
  const auto c = whole("params", given, offsetof(hyla_norm_gated_rms_params, eps));
  norm::GatedRmsParams p;
  p.x = view("x", c.x);
  p.z = view("z", c.z);
  p.weight = view("weight", c.weight);
  p.out = view("out", c.out);
  p.eps = eps(c.eps, p.eps);
  p.gate = norm_activation("gate", c.gate);
  p.impl = c.impl;
  return p;
}

}  // namespace hyla::capi

extern "C" {

hyla_status hyla_norm_gated_rms(const hyla_norm_gated_rms_params* params,
                                const hyla_context* context) {
  return hyla::capi::guarded(
      [&] { hyla::norm::gated_rms(hyla::capi::params(params), hyla::capi::context(context)); });
}

}  // extern "C"
