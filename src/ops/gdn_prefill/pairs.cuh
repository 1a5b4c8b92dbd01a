// Two numbers of a 16-bit type in a register.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace hyla::gdn {

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

// 2^x, and zero for x below the exponents of float32.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x and 1 / sqrt(x), off by a float32 ulp or two; x below the smallest normal number counts as
// that.
inline constexpr float kLeastNormal = 0x1p-126f;
__device__ __forceinline__ float over(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, kLeastNormal)));
  return y;
}
__device__ __forceinline__ float over_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, kLeastNormal)));
  return y;
}

}  // namespace hyla::gdn
