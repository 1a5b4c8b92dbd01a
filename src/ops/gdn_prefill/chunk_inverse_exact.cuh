// Rows of T = (I + L)^-1 in float32, by one warp, for chunks in which the recurrence grows beyond
// the range of fp16: then the blocks of chunk_inverse.cuh hold an infinity. Slow, and rare: keys
// are normalised, or beta small, wherever a state is to stay bounded.
#pragma once

#include "device/reduce.cuh"
#include "ops/gdn_prefill/chunk_inverse.cuh"

namespace hyla::gdn {

// Anything that is not a number, or infinite, among pairs of Io.
template <class Io>
struct Overflow {
  std::uint32_t sum = 0;  // stays zero times anything finite

  __device__ __forceinline__ void look_at(std::uint32_t pair) {
    if constexpr (std::is_same_v<Io, __half>) {
      asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0u));
    } else {
      asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0u));
    }
  }
  __device__ __forceinline__ bool any() const {
    return __any_sync(device::kFullWarp, (sum & 0x7fff7fffu) != 0) != 0;
  }
};

// L_ij, i > j, after store_diagonal and store_lower.
__device__ __forceinline__ float lower_element(const InverseScratch& scratch, int i, int j) {
  const int I = i >> 4, J = j >> 4;
  i &= 15, j &= 15;
  if (I == J) return scratch.diagonal[I][i * 16 + diagonal_column(i, j)];
  return __half2float(scratch.lower[I * (I - 1) / 2 + J][i * kBlockPitch + j]);
}

// Rows 16 I ... 16 I + 15, four at a time, each handed to put(row, column, T) for the columns of
// this lane. x (I + L) = e_i is solved from the right: x_m is known when all columns behind m have
// been subtracted.
template <class Put>
__device__ __forceinline__ void solve_rows(const InverseScratch& scratch, int I, int lane,
                                           Put&& put) {
  constexpr int kRows = 4;
#pragma unroll 1
  for (int first = 16 * I; first < 16 * I + 16; first += kRows) {
    float low[kRows], high[kRows];  // columns lane and lane + 32
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      low[r] = lane == first + r ? 1.0f : 0.0f;
      high[r] = lane + 32 == first + r ? 1.0f : 0.0f;
    }
#pragma unroll 1
    for (int m = first + kRows - 1; m > 0; --m) {
      const float l = lane < m ? lower_element(scratch, m, lane) : 0.0f;
      const float h = lane + 32 < m ? lower_element(scratch, m, lane + 32) : 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float x = __shfl_sync(device::kFullWarp, m < 32 ? low[r] : high[r], m & 31);
        low[r] = fmaf(-x, l, low[r]);
        high[r] = fmaf(-x, h, high[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      put(first + r, lane, low[r]);
      put(first + r, lane + 32, high[r]);
    }
  }
}

}  // namespace hyla::gdn
