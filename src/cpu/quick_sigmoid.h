// Sigmoid and SiLU for results that are rounded to 16 bits. Compiled for each target (see
// foreach_target.h).
//
// 2^u comes from a polynomial of degree 4 on [0, 1), the best in relative error, 2^-18.5. Rounding
// adds 2^-22, and that of u = -x log2(e) up to |u| 2^-24.5: the result is within 2^-18 of itself
// for |x| < 16 and within 2^-16 for all x down to -88. Rounding to bfloat16 costs up to 512 times
// that, to float16 128 times. Below -88 a SiLU is smaller than 2^-120, but not exactly zero.
#if defined(HYLA_CPU_QUICK_SIGMOID_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_QUICK_SIGMOID_H_
#undef HYLA_CPU_QUICK_SIGMOID_H_
#else
#define HYLA_CPU_QUICK_SIGMOID_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Of kCount vectors, step by step: a processor sees their independent chains side by side.
// A sigmoid is 1 / y, a SiLU x / y; x may change where that does not show.
template <int kCount>
HYLA_INLINE void quick_denominators(F (&x)[kCount], F (&y)[kCount]) {
  F u[kCount], r[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = max(set(-88.0f), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) u[i] = mul(x[i], set(-1.44269504f));
  if constexpr (kLanes != 16) {  // AVX-512 saturates by itself
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) u[i] = max(set(-126.0f), u[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) r[i] = fraction(u[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) y[i] = fma(r[i], set(0.0135341678f), set(0.0520114601f));
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) y[i] = fma(y[i], r[i], set(0.241442755f));
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) y[i] = fma(y[i], r[i], set(0.693003833f));
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) y[i] = fma(y[i], r[i], set(1.00000262f));
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) y[i] = add(set(1.0f), scale_by_floor(y[i], u[i]));
}

template <bool kTimesX, int kCount>
HYLA_INLINE void quick_sigmoids(F (&x)[kCount]) {
  F y[kCount];
  quick_denominators(x, y);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = div(kTimesX ? x[i] : set(1.0f), y[i]);
}

template <int kCount>
HYLA_INLINE void quick_silus(F (&x)[kCount]) {
  quick_sigmoids<true>(x);
}
HYLA_INLINE F quick_sigmoid(F x) {
  F one[] = {x};
  quick_sigmoids<false>(one);
  return one[0];
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_QUICK_SIGMOID_H_
