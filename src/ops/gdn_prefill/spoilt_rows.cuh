// Inputs of fp16 make operands of fp16, which end at 65504, where long keys, beta up to 2 or large
// values may take a state. An operand that is infinite makes its value row of the state infinite or
// NaN, and nothing removes that again: no decay does, as 0 times it is NaN. So it is seen at the
// end. Such a row's final state is not stored, so that its initial one is still there where states
// change in place; a NaN that no arithmetic makes takes the place of its last output; and the
// kernel behind (kernel_again.cuh) walks over the tokens of the row again, in float32.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "device/reduce.cuh"

namespace hyla::gdn {

// Have operands of Io less range than the state?
template <class Io>
inline constexpr bool kMaySpoil = std::is_same_v<Io, __half>;

inline constexpr std::uint16_t kSpoiltMark = 0xffff;

// NaN where one of `by` is not finite; both are pairs of fp16.
__device__ __forceinline__ void spoil_pair(std::uint32_t& pair, std::uint32_t by) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(pair) : "r"(by), "r"(0u));
}

// Of a thread's two value rows, v and v + 8.
struct SpoiltRows {
  bool first = false, second = false;

  __device__ __forceinline__ bool any() const { return first || second; }
};

// Fragments of one state, in which elements 4 j and 4 j + 1 are of the first row, the next two of
// the second; the four lanes of a quad share both. All of a spoilt row becomes NaN.
template <class... Fragments>
__device__ __forceinline__ SpoiltRows spoil_rows(Fragments&... fragments) {
  float sums[2] = {};  // zero times everything
  const auto add = [&](const float(&S)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i >> 1 & 1] = fmaf(S[i], 0.0f, sums[i >> 1 & 1]);
  };
  (add(fragments), ...);
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    sums[0] += __shfl_xor_sync(device::kFullWarp, sums[0], d);
    sums[1] += __shfl_xor_sync(device::kFullWarp, sums[1], d);
  }
  const SpoiltRows spoilt{sums[0] != 0.0f, sums[1] != 0.0f};
  // -0 leaves every number as it is, zeros of both signs too.
  const float first = spoilt.first ? NAN : -0.0f, second = spoilt.second ? NAN : -0.0f;
  const auto mark = [&](float(&S)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      // In place: there are no registers for both.
      asm volatile("add.f32 %0, %0, %1;" : "+f"(S[i]) : "f"(i >> 1 & 1 ? second : first));
    }
  };
  (mark(fragments), ...);
  return spoilt;
}

// Into the row's last output. `first`: address of that of row v; by every lane.
__device__ __forceinline__ void mark_rows(void* first, const SpoiltRows& spoilt, int lane,
                                          bool has_first = true, bool has_second = true) {
  if ((lane & 3) != 0) return;
  auto* to = static_cast<std::uint16_t*>(first);
  if (spoilt.first && has_first) to[0] = kSpoiltMark;
  if (spoilt.second && has_second) to[8] = kSpoiltMark;
}

}  // namespace hyla::gdn
