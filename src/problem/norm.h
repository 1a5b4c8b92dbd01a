#pragma once

#include <hyla/norm.h>

#include "core/views.h"

namespace hyla::norm {

// What gates and scales a normalised vector, in the operation and in the fused epilogues.
struct GateView {
  core::TokenView z;
  core::VectorView weight;
  double eps = 0;
  Activation gate = Activation::kSilu;

  HYLA_HOST_DEVICE bool present() const { return z.present(); }
};

struct GatedRmsProblem {
  std::int64_t tokens = 0, heads = 0, D = 0;  // [rows, D]: one token of `rows` heads
  core::TokenView x, out;
  GateView gate;
};

GatedRmsProblem validate(const GatedRmsParams& params, const Context& context);

}  // namespace hyla::norm
