// Merges rows of any dtypes, dims and strides: a warp a row, element by element.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/dtype.cuh"
#include "ops/attention_merge/shares.cuh"
#include "problem/attention_merge.h"

namespace hyla::attention {

inline constexpr int kMergeWarps = 4;

// a, b, out [tokens, heads, dim]; a_lse, b_lse, lse [tokens, heads]; grid over rows, kMergeWarps a
// CTA. An element is read and written by one lane, so out may be a or b; the lanes have all read a
// row's logarithms when one of them writes.
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_any(const __grid_constant__ MergeProblem p) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const std::int64_t rows = p.tokens * p.heads, step = std::int64_t{gridDim.x} * kMergeWarps;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  for (std::int64_t i = std::int64_t{blockIdx.x} * kMergeWarps + warp; i < rows; i += step) {
    const std::int64_t token = i / p.heads, head = i % p.heads;
    const auto logarithm = [&](const core::TokenView& of) {
      return static_cast<const float*>(of.data)[of.offset(0, token, head)];
    };
    const MergeShares shares(logarithm(p.a_lse), logarithm(p.b_lse));
    __syncwarp();
    if (lane == 0 && p.lse.present()) {
      static_cast<float*>(p.lse.data)[p.lse.offset(0, token, head)] = shares.lse;
    }
    const std::int64_t a = p.a.offset(0, token, head), b = p.b.offset(0, token, head);
    const std::int64_t out = p.out.offset(0, token, head);
    for (std::int64_t d = lane; d < p.dim; d += 32) {
      const float of_a = device::load_number(p.a.data, p.a.dtype, a + d);
      const float of_b = device::load_number(p.b.data, p.b.dtype, b + d);
      device::store_number(p.out.data, p.out.dtype, out + d, shares.merged(of_a, of_b));
    }
  }
}

}  // namespace hyla::attention
