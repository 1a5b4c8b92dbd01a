// Eight stored bytes as eight 16-bit numbers, as they are or times a scale.
#pragma once

#include <cuda_fp8.h>

#include "ops/attention_prefill/softmax.cuh"

namespace hyla::attention {

// Four e4m3 numbers.
__device__ __forceinline__ void floats_of_e4m3(std::uint32_t word, float (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(word >> (16 * i));
    const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    x[2 * i] = both.x, x[2 * i + 1] = both.y;
  }
}

// Four int8 numbers: 2^23 + 128 + n has n in its lowest bits, so conversions are not needed.
__device__ __forceinline__ void floats_of_int8(std::uint32_t word, float (&x)[4]) {
  const std::uint32_t shifted = word ^ 0x80808080u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7650 | i)) - 8388736.0f;
  }
}

// One rounding.
template <class Element, bool kIntegers>
__device__ __forceinline__ uint4 widened_scaled(uint2 bytes, float scale) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float x[4];
    if constexpr (kIntegers) {
      floats_of_int8(i == 0 ? bytes.x : bytes.y, x);
    } else {
      floats_of_e4m3(i == 0 ? bytes.x : bytes.y, x);
    }
    words[2 * i] = packed<Element>(x[0] * scale, x[1] * scale);
    words[2 * i + 1] = packed<Element>(x[2] * scale, x[3] * scale);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Two int8 numbers, the bytes `first` and `first` + 1 of a word.
template <class Element>
__device__ __forceinline__ std::uint32_t pair_of_int8(std::uint32_t word, int first) {
  std::uint32_t result;
  const int select = first == 0 ? 0x4140 : 0x4342;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    // 0x4300 | x is 128 + x for x below 128 and 256 for 128: (128 + low bits) - (128 or 256).
    const std::uint32_t both = __byte_perm(word, 0x43434343u, select);
    asm("sub.rn.bf16x2 %0, %1, %2;"
        : "=r"(result)
        : "r"(both & 0xff7fff7fu), "r"(both & 0xff80ff80u));
  } else {
    // 0x6400 | x is 1024 + x; x here is the number + 128.
    const std::uint32_t both = __byte_perm(word ^ 0x80808080u, 0x64646464u, select);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(both), "r"(0x64806480u));
  }
  return result;
}

// Two e4m3 numbers. bfloat16 has them all, and no conversion of its own.
template <class Element>
__device__ __forceinline__ std::uint32_t pair_of_e4m3(std::uint32_t pair) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    const float2 both = __half22float2(__half2(halves));
    return packed<Element>(both.x, both.y);
  } else {
    return std::uint32_t{halves.y} << 16 | halves.x;
  }
}

// Exact.
template <class Element, bool kIntegers>
__device__ __forceinline__ uint4 widened(uint2 bytes) {
  if constexpr (kIntegers) {
    return make_uint4(pair_of_int8<Element>(bytes.x, 0), pair_of_int8<Element>(bytes.x, 2),
                      pair_of_int8<Element>(bytes.y, 0), pair_of_int8<Element>(bytes.y, 2));
  } else {
    return make_uint4(pair_of_e4m3<Element>(bytes.x & 0xffff), pair_of_e4m3<Element>(bytes.x >> 16),
                      pair_of_e4m3<Element>(bytes.y & 0xffff),
                      pair_of_e4m3<Element>(bytes.y >> 16));
  }
}

}  // namespace hyla::attention
