// The fused gated norm of what a block's tokens give.
#pragma once

#include <cooperative_groups.h>

#include "device/activation.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/block_solve.cuh"

namespace hyla::gdn {

// The fused gated norm over the V values of a head, which are a cluster of CTAs.
template <class P>
__device__ __forceinline__ void normalise(const MtpBlockArguments& a, MtpBlockShared<P>& shared,
                                          std::uint32_t row, std::uint32_t first, int tokens,
                                          int head, int value, bool owns, int warp, int lane,
                                          BlockSums& sums) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const int t = lane & 3;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float square = sums.o[0][e] * sums.o[0][e] + sums.o[1][e] * sums.o[1][e];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      square += __shfl_xor_sync(device::kFullWarp, square, mask);
    }
    if (lane < 4) shared.squares[warp][2 * t + e] = owns ? square : 0.0f;
  }
  cluster.sync();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = 2 * t + e;
    float total = 0;
    for (unsigned cta = 0; cta < cluster.num_blocks(); ++cta) {
      const float* squares = cluster.map_shared_rank(&shared.squares[0][token], cta);
#pragma unroll
      for (int w = 0; w < P::kWarps; ++w) total += squares[w * P::kTokens];
    }
    const float factor =
        rsqrtf(total / static_cast<float>(a.values) + static_cast<float>(a.norm.eps));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (!owns || token >= tokens) continue;
      const float z =
          device::load_number(a.norm.z.data, a.norm.z.dtype,
                              a.norm.z.offset(row, first + token, head, value + n * P::kRowStep));
      const float weight = device::load_number(a.norm.weight.data, a.norm.weight.dtype,
                                               (value + n * P::kRowStep) * a.norm.weight.stride);
      sums.o[n][e] *=
          factor * weight *
          (a.norm.gate == norm::Activation::kSilu ? device::silu(z) : device::sigmoid(z));
    }
  }
  cluster.sync();  // the sums may be overwritten, and their CTA may leave
}

}  // namespace hyla::gdn
