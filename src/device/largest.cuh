// Maxima over the lanes of a warp.
#pragma once

#include "device/reduce.cuh"

namespace hyla::device {

// The largest of groups of `Width` neighbouring lanes, in every lane.
template <int Width>
__device__ __forceinline__ float largest_of_lanes(float x) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, mask));
  return x;
}

}  // namespace hyla::device
