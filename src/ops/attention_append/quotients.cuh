// Numbers divided by the scale of their run and rounded to a byte, as the reference rounds a
// float64 quotient.
#pragma once

#include <cuda_fp8.h>

#include "arch/exponential.cuh"

namespace hyla::attention::appending {

template <class Out>
inline constexpr float kLargest = 448.0f;
template <>
inline constexpr float kLargest<std::int8_t> = 127.0f;

// A sum of two floats, the second beyond the precision of the first.
struct Exact {
  float high, low;
};

// a b + c d as exact as double would have it where few bits are kept: they must be the right ones.
__device__ __forceinline__ Exact exact_products(float a, float b, float c, float d) {
  const float p = a * b, q = c * d;
  const float sum = p + q, other = sum - p;
  const float low = ((p - (sum - other)) + (q - other)) + (fmaf(a, b, -p) + fmaf(c, d, -q));
  const float high = sum + low;
  return {high, low - (high - sum)};
}

// x moved a little to where the rest lies, so that rounding it to few bits rounds their sum.
__device__ __forceinline__ float leaning(float x, float rest) {
  const int bits = __float_as_int(x), step = ((__float_as_int(rest) ^ bits) >> 31) | 1;
  return __int_as_float(rest != 0.0f ? bits + step : bits);
}

// (largest + low) / the largest number of Out, rounded once.
template <class Out>
__device__ __forceinline__ float scale_of(float largest, float low = 0.0f) {
  constexpr float kInverse = 1.0f / kLargest<Out>;
  const float about = largest * kInverse;
  return fmaf(fmaf(-about, kLargest<Out>, largest) + low, kInverse, about);
}

// Below it the reciprocal could be infinite.
inline constexpr float kLeastScale = 0x1p-100f;

// Four numbers of Out's range, rounded to the nearest. int8: they are sums with 1.5 * 2^23, which
// rounds to an integer whose lowest byte is then that of the sum.
template <class Out>
__device__ __forceinline__ std::uint32_t four_bytes(float a, float b, float c, float d) {
  if constexpr (std::is_same_v<Out, std::int8_t>) {
    return __byte_perm(__byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0040),
                       __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
  } else {
    const auto pair = [&](float x, float y) -> std::uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
    };
    return pair(a, b) | pair(c, d) << 16;
  }
}
template <class Out, class Quotient>
__device__ __forceinline__ uint2 eight_bytes(const float (&x)[8], Quotient quotient) {
  float q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = quotient(x[i]);
  return make_uint2(four_bytes<Out>(q[0], q[1], q[2], q[3]),
                    four_bytes<Out>(q[4], q[5], q[6], q[7]));
}
inline constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23
template <class Out>
__device__ __forceinline__ uint2 products(const float (&x)[8], float factor) {
  return eight_bytes<Out>(x, [&](float value) {
    return std::is_same_v<Out, std::int8_t> ? fmaf(value, factor, kToInteger) : value * factor;
  });
}

// To the range of Out; the conversion to e4m3 does so itself.
template <class Out>
__device__ __forceinline__ void clamp(float (&x)[8]) {
  if constexpr (std::is_same_v<Out, std::int8_t>) {
#pragma unroll
    for (float& value : x) value = fminf(fmaxf(value, -127.0f), 127.0f);
  }
}

// The product with the reciprocal becomes the nearest number with few bits, moved one step to the
// side of the remainder.
__device__ __forceinline__ float exact_quotient(const Exact& x, float scale, float inverse) {
  const float few = __int_as_float((__float_as_int(x.high * inverse) + 8) & ~15);
  return leaning(few, fmaf(-few, scale, x.high) + x.low);
}

// Any quotients.
template <class Out>
__device__ __forceinline__ uint2 divide_exactly(Exact (&x)[8], float scale) {
  if (scale < kLeastScale) {
    scale *= 0x1p100f;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = {x[i].high * 0x1p100f, x[i].low * 0x1p100f};
  }
  const float inverse = arch::reciprocal_fast(scale);
  float quotients[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float quotient = exact_quotient(x[i], scale, inverse);
    quotients[i] = scale == 0.0f ? 0.0f : quotient;
  }
  return products<Out>(quotients, 1.0f);
}
// One, by a scale that is not below the least.
template <class Out>
__device__ __forceinline__ std::uint32_t divide_exactly(const Exact& x, float scale,
                                                        float inverse) {
  const float quotients[8] = {exact_quotient(x, scale, inverse)};
  return products<Out>(quotients, 1.0f).x & 0xffu;
}

inline constexpr float kAbove = 1.0f + 0x1p-21f, kBelow = 1.0f - 0x1p-21f;
// The quotients lie between the products with two numbers around the reciprocal, whatever is lost
// on the way (3/4 of 2^-21 of them); what both are rounded to is right. False where they differ:
// close to a tie, a few in 10^5.
template <class Out>
__device__ __forceinline__ bool divide_between(const float (&x)[8], float scale, uint2& result) {
  const float inverse = arch::reciprocal_fast(scale);
  result = products<Out>(x, inverse * kAbove);
  const uint2 other = products<Out>(x, inverse * kBelow);
  return ((result.x ^ other.x) | (result.y ^ other.y)) == 0 && scale >= kLeastScale;
}

// To float so that a second rounding to fewer bits is the only one: inexact results become odd.
__device__ __forceinline__ float round_to_odd(double x) {
  const float cut = __double2float_rz(x);
  if (static_cast<double>(cut) == x || !isfinite(cut)) return cut;
  return __uint_as_float(__float_as_uint(cut) | 1u);
}

// By any scale at all, as the reference does it. NaN becomes NaN or -127.
template <class Out>
__device__ __forceinline__ uint2 divide_as_double(const Exact (&x)[8], float scale) {
  float q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const double value = static_cast<double>(x[i].high) + static_cast<double>(x[i].low);
    const double quotient = scale == 0.0f ? 0.0 : value / static_cast<double>(scale);
    if constexpr (std::is_same_v<Out, std::int8_t>) {
      q[i] = static_cast<float>(fmin(fmax(rint(quotient), -127.0), 127.0));
    } else {
      q[i] = round_to_odd(quotient);
    }
  }
  return products<Out>(q, 1.0f);
}

// A scale that was given, of any magnitude and sign. Numbers of up to 11 bits over a scale of up to
// 12 are ties or 2^-20 away from one, and a product with the reciprocal and one with what it lacks,
// rounded once, is a tie where the quotient is one. Over a scale of more bits there are no ties,
// but the product may be rounded to one.
template <class Out>
struct GivenScale {
  float scale, inverse, rest;
  bool plain, few_bits;

  __device__ __forceinline__ explicit GivenScale(float given) : scale(given) {
    const float size = fabsf(given), about = arch::reciprocal_fast(given);
    plain = size >= kLeastScale && size <= 1 / kLeastScale;
    few_bits = (__float_as_uint(given) & 0xfffu) == 0;
    const float closer = fmaf(about, fmaf(-given, about, 1.0f), about);
    // The rest has the reciprocal's sign, for the sign of what is zero and for what is infinite.
    inverse = fmaf(closer, -0x1p-19f, closer);
    rest = fmaf(-given, inverse, 1.0f) * closer;
  }

  // Numbers of up to 11 bits. False where the result may be wrong.
  __device__ __forceinline__ bool divide(const float (&x)[8], uint2& result) const {
    // Bits that a tie does not have.
    constexpr unsigned kBeyond = std::is_same_v<Out, std::int8_t> ? 0xffffu : 0x7ffffu;
    float q[8];
    bool sure = true;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = fmaf(x[i], inverse, x[i] * rest);
      sure = (__float_as_uint(q[i]) & kBeyond) != 0 && sure;
    }
    clamp<Out>(q);
    result = products<Out>(q, 1.0f);
    return plain && (sure || few_bits);
  }

  // Any numbers, as divide_exactly does it.
  __device__ __forceinline__ uint2 divide_exactly(const Exact (&x)[8]) const {
    if (!plain) return divide_as_double<Out>(x, scale);
    const float about = inverse + rest, sign = copysignf(1.0f, scale);
    float q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float product = x[i].high * about;
      const float few = __int_as_float((__float_as_int(product) + 8) & ~15);
      const float left = (fmaf(-few, scale, x[i].high) + x[i].low) * sign;
      q[i] = fabsf(product) < __builtin_huge_valf() ? leaning(few, left) : product;
    }
    clamp<Out>(q);
    return products<Out>(q, 1.0f);
  }

  // Numbers with an error of 2^-23 of themselves.
  __device__ __forceinline__ bool divide_between(const float (&x)[8], uint2& result) const {
    const auto rounded = [&](float factor) {
      float q[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i] = x[i] * factor;
      clamp<Out>(q);
      return products<Out>(q, 1.0f);
    };
    const float about = inverse + rest;
    result = rounded(about * kAbove);
    const uint2 other = rounded(about * kBelow);
    return ((result.x ^ other.x) | (result.y ^ other.y)) == 0 && plain;
  }
};

// Of numbers of up to 11 bits, whose run's largest is one of them. Their quotients by the largest,
// times 448 or 127, are ties or at least 2^-19 away from one, so nothing but the tie asks for more
// than float32: there the error of the scale decides, which all of a run share. Where the scale has
// none a tie is exact, and so must the product be: with the rest of the reciprocal it is.
template <class Out>
struct Divisor {
  float scale, inverse, rest;
  bool plain;

  __device__ __forceinline__ explicit Divisor(float largest) : scale(scale_of<Out>(largest)) {
    const float error = fmaf(-scale, kLargest<Out>, largest);
    const float about = arch::reciprocal_fast(scale);
    inverse = fmaf(about, fmaf(-scale, about, 1.0f), about);
    if (!(error == error)) inverse = 0.0f;  // the largest is infinite
    const float lean = copysignf(0x1p-21f, error);
    plain = scale >= kLeastScale;
    if constexpr (std::is_same_v<Out, std::int8_t>) {
      // One rounding, of the sum: the scale has to have a reciprocal.
      plain = plain & ((error != 0.0f) | ((__float_as_uint(scale) & 0x7fffffu) == 0));
      inverse = fmaf(inverse, error == 0.0f ? 0.0f : lean, inverse);
    } else {
      // Above zero, for the sign of what is zero.
      const float about_inverse = fmaf(inverse, -0x1p-19f, inverse);
      rest = (fmaf(-scale, about_inverse, 1.0f) + (error == 0.0f ? 0.0f : lean)) * inverse;
      inverse = about_inverse;
    }
  }

  // Where it is plain.
  __device__ __forceinline__ uint2 divide(const float (&x)[8]) const {
    if constexpr (std::is_same_v<Out, std::int8_t>) return products<Out>(x, inverse);
    return eight_bytes<Out>(x, [&](float value) { return fmaf(value, inverse, value * rest); });
  }
};

}  // namespace hyla::attention::appending
