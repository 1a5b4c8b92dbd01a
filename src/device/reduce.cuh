// Sums over the lanes of a warp.
#pragma once

#include <cstdint>

namespace hyla::device {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Sum over groups of `Width` neighbouring lanes, in every lane.
template <int Width>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kFullWarp, x, mask);
  return x;
}

// Sums N values over groups of `Width` lanes at once; lane l of a group ends with the sum of value
// l % N. A butterfly that halves the values as it goes: about N + log2(Width / N) shuffles instead
// of N log2(Width).
template <int Width, int N>
__device__ __forceinline__ float reduce_scatter(float (&values)[N]) {
  static_assert(N <= Width && (N & (N - 1)) == 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float send = upper ? values[i] : values[i + half];
      const float keep = upper ? values[i + half] : values[i];
      values[i] = keep + __shfl_xor_sync(kFullWarp, send, half);
    }
  }
  float sum = values[0];
#pragma unroll
  for (int mask = N; mask < Width; mask *= 2) sum += __shfl_xor_sync(kFullWarp, sum, mask);
  return sum;
}

}  // namespace hyla::device
