// The vectors of the target that is being compiled: one vocabulary over Highway and, in builds
// without it and for the baseline of x86, over the compiler's own vectors.
//
//     F                     a full vector of kLanes floats
//     load, store           from and to float, bfloat16, float16, rounded to nearest even; with 8
//                           lanes and more from int8 and e4m3, too
//     load_n, store_n       the first n lanes; a load's other lanes are zero
//     stream, flush_stream  as store, past the caches
//     add sub mul fma ...   fma(a, b, c) = a * b + c
//     sum, sum4             over the lanes of one vector; of four, as four floats
//     sum_each              of kLanes vectors, one in each lane
//     max_modulo<n>         over lanes that are n apart
//     transpose4            of four vectors, within blocks of four lanes
//     exp                   within 2 ulp, 0 below the smallest normal number, inf above the largest
//     tanh                  within 8 roundoffs of itself, however small
//     exp2                  of numbers up to 0, within 2e-7 of it, 1 of 0
//     Words                 (HYLA_TARGET_HAS_WORDS) 2 kLanes bfloat16; split_words makes floats of
//                           those with even and with odd numbers, join_words goes back;
//                           split_lanes and zip_lanes bring floats into that order and back
//     P                     (HYLA_TARGET_HAS_PAIRS) kLanes pairs of bfloat16; dot_pairs(acc, a, b)
//                           adds a.even * b.even + a.odd * b.odd; even, odd and pack_pairs
//                           convert from and to floats; zip_pairs(a, b, ...) pairs the
//                           bfloat16 of a with those of b, interleave_pairs within blocks
#if defined(HYLA_CPU_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_SIMD_H_
#undef HYLA_CPU_SIMD_H_
#else
#define HYLA_CPU_SIMD_H_
#endif

#include <hyla/float.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#undef HYLA_TARGET_NAMESPACE
#undef HYLA_TARGET_BEGIN
#undef HYLA_TARGET_END
#undef HYLA_TARGET_ONCE
#undef HYLA_TARGET_HAS_AVX512
#undef HYLA_TARGET_HAS_WORDS
#undef HYLA_TARGET_HAS_PAIRS
#undef HYLA_TARGET_USES_HIGHWAY
#define HYLA_TARGET_HAS_AVX512 0
#define HYLA_TARGET_HAS_WORDS 0
#define HYLA_TARGET_HAS_PAIRS 0
#define HYLA_TARGET_USES_HIGHWAY 0

#ifdef HYLA_HAS_HIGHWAY
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#define HYLA_TARGET_ONCE HWY_ONCE
#if HWY_TARGET == HWY_AVX3_DL
#define HYLA_TARGET_NAMESPACE avx512_bf16
#elif HWY_TARGET == HWY_AVX3
#define HYLA_TARGET_NAMESPACE avx512
#elif HWY_TARGET == HWY_AVX2
#define HYLA_TARGET_NAMESPACE avx2
#else
#define HYLA_TARGET_NAMESPACE baseline
#endif
// Highway's emulated baseline is slower than what the compiler makes of its own vectors.
#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
#undef HYLA_TARGET_USES_HIGHWAY
#define HYLA_TARGET_USES_HIGHWAY 1
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#undef HYLA_TARGET_HAS_AVX512
#define HYLA_TARGET_HAS_AVX512 1
#endif
#if HWY_TARGET == HWY_AVX2 || HYLA_TARGET_HAS_AVX512
#undef HYLA_TARGET_HAS_WORDS
#define HYLA_TARGET_HAS_WORDS 1
#endif
#if HWY_TARGET == HWY_AVX3_DL
#undef HYLA_TARGET_HAS_PAIRS
#define HYLA_TARGET_HAS_PAIRS 1
#define HYLA_TARGET_BEGIN \
  HWY_BEFORE_NAMESPACE(); \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
#define HYLA_TARGET_END \
  HWY_POP_ATTRIBUTES    \
  HWY_AFTER_NAMESPACE();
#else
#define HYLA_TARGET_BEGIN HWY_BEFORE_NAMESPACE();
#define HYLA_TARGET_END HWY_AFTER_NAMESPACE();
#endif

#else  // HYLA_HAS_HIGHWAY
#define HYLA_TARGET_ONCE HYLA_COMPILED_ONCE
#define HYLA_TARGET_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HYLA_TARGET_PUSH(features) \
  HYLA_TARGET_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define HYLA_TARGET_END HYLA_TARGET_PRAGMA(clang attribute pop)
#else
#define HYLA_TARGET_PUSH(features) \
  HYLA_TARGET_PRAGMA(GCC push_options) HYLA_TARGET_PRAGMA(GCC target features)
#define HYLA_TARGET_END HYLA_TARGET_PRAGMA(GCC pop_options)
#endif
#if HYLA_COMPILED_TARGET >= 2
#undef HYLA_TARGET_HAS_AVX512
#define HYLA_TARGET_HAS_AVX512 1
#endif
#if HYLA_COMPILED_TARGET >= 1
#undef HYLA_TARGET_HAS_WORDS
#define HYLA_TARGET_HAS_WORDS 1
#endif
#if HYLA_COMPILED_TARGET == 1
#define HYLA_TARGET_NAMESPACE avx2
#define HYLA_TARGET_BEGIN HYLA_TARGET_PUSH("avx2,fma,bmi,bmi2,f16c")
#elif HYLA_COMPILED_TARGET == 2
#define HYLA_TARGET_NAMESPACE avx512
#define HYLA_TARGET_BEGIN \
  HYLA_TARGET_PUSH("avx2,fma,bmi,bmi2,f16c,avx512f,avx512cd,avx512bw,avx512dq,avx512vl")
#elif HYLA_COMPILED_TARGET == 3
#undef HYLA_TARGET_HAS_PAIRS
#define HYLA_TARGET_HAS_PAIRS 1
#define HYLA_TARGET_NAMESPACE avx512_bf16
#define HYLA_TARGET_BEGIN                                                   \
  HYLA_TARGET_PUSH(                                                         \
      "avx2,fma,bmi,bmi2,f16c,avx512f,avx512cd,avx512bw,avx512dq,avx512vl," \
      "avx512bf16,avx512vbmi")
#else
#define HYLA_TARGET_NAMESPACE baseline
#define HYLA_TARGET_BEGIN
#undef HYLA_TARGET_END
#define HYLA_TARGET_END
#endif
#endif  // HYLA_HAS_HIGHWAY

#ifndef HYLA_INLINE
#define HYLA_INLINE inline __attribute__((always_inline))
#endif

#if HYLA_TARGET_HAS_PAIRS
HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
// Where zip_pairs finds its words: those of its second argument are counted on.
struct ZipOrder {
  alignas(64) std::uint16_t lower[32], upper[32];
  constexpr ZipOrder() : lower(), upper() {
    for (int i = 0; i < 16; ++i) {
      lower[2 * i] = static_cast<std::uint16_t>(i);
      lower[2 * i + 1] = static_cast<std::uint16_t>(32 + i);
      upper[2 * i] = static_cast<std::uint16_t>(16 + i);
      upper[2 * i + 1] = static_cast<std::uint16_t>(48 + i);
    }
  }
};
inline constexpr ZipOrder kZip;
}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif

#if HYLA_TARGET_USES_HIGHWAY
#include "cpu/simd_highway.h"
#else
#include "cpu/simd_compiler.h"
#endif
#if HYLA_TARGET_HAS_WORDS
#include "cpu/simd_words.h"
#endif
#if HYLA_TARGET_HAS_PAIRS
#include "cpu/simd_pairs.h"
#endif
#include "cpu/simd_common.h"

#endif  // HYLA_CPU_SIMD_H_
