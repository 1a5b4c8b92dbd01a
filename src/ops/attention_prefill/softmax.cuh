// Online softmax on the accumulators of a warpgroup: each thread holds two rows, four threads share
// a row.
#pragma once

#include <cstdint>

#include "arch/exponential.cuh"
#include "device/dtype.cuh"
#include "ops/attention_prefill/arguments.cuh"

namespace hyla::attention {

// The reference maximum follows the true one only when that has grown by more than this power of
// two: probabilities stay below 2^8, which 16 bits hold as well as those below 1, and the output is
// rarely rescaled.
inline constexpr float kLazyBits = 8.0f;

// float16 has room for 2^15, and its numbers below 2^-14 have fewer bits: probabilities are as much
// larger, so that many small ones keep theirs.
template <class Element>
inline constexpr float kRaisedBits = std::is_same_v<Element, __half> ? 7.0f : 0.0f;

struct SoftmaxRow {
  float maximum = -__builtin_huge_valf();  // of the products; what the exponentials refer to
  float sum = 0;                           // of this thread's columns
  float correction = 1;                    // for what was summed before
};

// Hides the keys that a row does not see; the thread's first one is `column`. Selects, so that a
// NaN in a key nobody may read disappears.
template <int Count>
__device__ __forceinline__ void hide_columns(float (&s)[Count], VisibleKeys upper,
                                             VisibleKeys lower, int column) {
  const float never = -__builtin_huge_valf();
  const int above = column - upper.begin, below = column - lower.begin;
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = 8 * i + e;
      if (static_cast<unsigned>(above + key) >= upper.count) s[4 * i + e] = never;
      if (static_cast<unsigned>(below + key) >= lower.count) s[4 * i + 2 + e] = never;
    }
  }
}

// scales: of the tile's keys; the thread's first one is 2 * quad_lane.
template <int Count>
__device__ __forceinline__ void scale_columns(float (&s)[Count], const float* scales,
                                              int quad_lane) {
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    const float2 x = *reinterpret_cast<const float2*>(scales + 8 * i + 2 * quad_lane);
    s[4 * i] *= x.x;
    s[4 * i + 1] *= x.y;
    s[4 * i + 2] *= x.x;
    s[4 * i + 3] *= x.y;
  }
}

// tanh(x) = 1 - 2 / (1 + e^(2x)); the caller has folded 2 log2(e) into `squeeze`. That is right to
// 2^-22 of 1, and of the cap; logits far below a large cap want a tanh that is right to 2^-22 of
// itself: by its series near 0.
template <int Count>
__device__ __forceinline__ void squeeze_logits(float (&s)[Count], float squeeze,
                                               bool large_cap = false) {
  if (!large_cap) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      s[i] = 1.0f - 2.0f * arch::reciprocal_fast(1.0f + arch::exp2_fast(s[i] * squeeze));
    }
    return;
  }
  constexpr float kHalfLn2 = 0.34657359028f, kNear = 0.2f;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const float power = s[i] * squeeze, x = power * kHalfLn2, square = x * x;
    const float series =
        fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
    const float far = 1.0f - 2.0f * arch::reciprocal_fast(1.0f + arch::exp2_fast(power));
    s[i] = fabsf(x) < kNear ? x * series : far;
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What a row's exponents refer to, base 2.
template <class Element>
__device__ __forceinline__ float reference_of(float maximum, float factor) {
  return fmaf(maximum, factor, -kRaisedBits<Element>);
}

// Takes the new maximum if it must, and returns the exponent's offset.
template <class Element>
__device__ __forceinline__ float follow_maximum(SoftmaxRow& row, float maximum, float factor) {
  const bool keep = (maximum - row.maximum) * factor <= kLazyBits;
  const float reference = keep ? row.maximum : maximum;
  // A row that has seen nothing yet refers to 0: its exponentials are those of -inf.
  const float offset =
      reference == -__builtin_huge_valf() ? 0.0f : reference_of<Element>(reference, factor);
  row.correction =
      keep ? 1.0f : arch::exp2_fast(reference_of<Element>(row.maximum, factor) - offset);
  row.maximum = reference;
  row.sum *= row.correction;
  return offset;
}

// Products become probabilities times 2^(kRaisedBits + something up to kLazyBits).
template <class Element = void, int Count>
__device__ __forceinline__ void exponentiate(float (&s)[Count], SoftmaxRow& upper,
                                             SoftmaxRow& lower, float factor) {
  float high = upper.maximum, low = lower.maximum;
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    high = fmaxf(high, fmaxf(s[4 * i], s[4 * i + 1]));
    low = fmaxf(low, fmaxf(s[4 * i + 2], s[4 * i + 3]));
  }
  const float upper_offset = follow_maximum<Element>(upper, quad_max(high), factor);
  const float lower_offset = follow_maximum<Element>(lower, quad_max(low), factor);
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[4 * i + e] = arch::exp2_fast(fmaf(s[4 * i + e], factor, -upper_offset));
      s[4 * i + 2 + e] = arch::exp2_fast(fmaf(s[4 * i + 2 + e], factor, -lower_offset));
    }
    upper.sum += s[4 * i] + s[4 * i + 1];
    lower.sum += s[4 * i + 2] + s[4 * i + 3];
  }
}

template <class Element>
__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  std::uint32_t result;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

// Skipped by a warp none of whose rows moved its reference.
template <int Count>
__device__ __forceinline__ void rescale(float (&o)[Count], const SoftmaxRow& upper,
                                        const SoftmaxRow& lower) {
  if (!__any_sync(0xffffffffu, upper.correction != 1.0f || lower.correction != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    o[4 * i] *= upper.correction;
    o[4 * i + 1] *= upper.correction;
    o[4 * i + 2] *= lower.correction;
    o[4 * i + 3] *= lower.correction;
  }
}

}  // namespace hyla::attention
