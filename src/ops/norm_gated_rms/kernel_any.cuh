// Gated RMSNorm of any vectors: a warp takes one, reads it once for the sum and once more, from
// cache, for the result. An element is read and written by one lane, so out may be x.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/activation_for.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "problem/norm.h"

namespace hyla::norm {

inline constexpr int kWarps = 4;

// x, z, out [tokens, heads, D]; weight [D]; grid over vectors, kWarps a CTA
__global__ void __launch_bounds__(kWarps * 32)
    gated_rms_any(const __grid_constant__ GatedRmsProblem p) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const std::int64_t vectors = p.tokens * p.heads;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + warp; i < vectors; i += step) {
    const std::int64_t token = i / p.heads, head = i % p.heads;
    const std::int64_t x = p.x.offset(0, token, head), z = p.gate.z.offset(0, token, head);
    const std::int64_t out = p.out.offset(0, token, head);
    float sum = 0;
    for (std::int64_t d = lane; d < p.D; d += 32) {
      const float value = device::load_number(p.x.data, p.x.dtype, x + d * p.x.dim_stride);
      sum += value * value;
    }
    sum = device::sum_lanes<32>(sum);
    const float factor = rsqrtf(sum / static_cast<float>(p.D) + static_cast<float>(p.gate.eps));
    for (std::int64_t d = lane; d < p.D; d += 32) {
      const float value = device::load_number(p.x.data, p.x.dtype, x + d * p.x.dim_stride);
      const float gate =
          device::load_number(p.gate.z.data, p.gate.z.dtype, z + d * p.gate.z.dim_stride);
      const float weight =
          device::load_number(p.gate.weight.data, p.gate.weight.dtype, d * p.gate.weight.stride);
      const float activated =
          p.gate.gate == Activation::kSilu ? device::silu_for<float>(gate) : device::sigmoid(gate);
      device::store_number(p.out.data, p.out.dtype, out + d * p.out.dim_stride,
                           value * factor * weight * activated);
    }
  }
}

}  // namespace hyla::norm
