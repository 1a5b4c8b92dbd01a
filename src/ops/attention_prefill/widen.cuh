// Eight stored bytes as eight 16-bit numbers, times a scale: one rounding.
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

template <class Element, bool kIntegers>
__device__ __forceinline__ uint4 widened(uint2 bytes, float scale) {
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

}  // namespace hyla::attention
