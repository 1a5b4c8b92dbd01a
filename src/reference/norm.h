// The definition of gated RMSNorm, as an operation and as the epilogue of others.
#pragma once

#include <hyla/workspace.h>

#include <cmath>
#include <vector>

#include "problem/norm.h"
#include "reference/scalar.h"

namespace hyla::reference {

// x * rsqrt(mean(x^2) + eps) * weight * activation(z) of one vector.
inline void gated_norm(std::vector<double>& x, const norm::GateView& norm, std::int64_t row,
                       std::int64_t token, std::int64_t head) {
  double sum = 0;
  for (double value : x) sum += value * value;
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + norm.eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    const double z = load(norm.z, row, token, head, dim);
    const double gate = norm.gate == norm::Activation::kSilu ? silu(z) : sigmoid(z);
    x[i] *= factor * load(norm.weight, dim) * gate;
  }
}

void gated_rms(const norm::GatedRmsProblem&, const Workspace&, const Context&);

}  // namespace hyla::reference
