// Compiles the including source, named by HYLA_TARGET_SOURCE, once for each target. Such a source
// looks like this:
//
//     #undef HYLA_TARGET_SOURCE
//     #define HYLA_TARGET_SOURCE "cpu/name.cpp"
//     #include "cpu/foreach_target.h"  // after every header that is not compiled for each target
//     #include "cpu/simd.h"
//
//     HYLA_TARGET_BEGIN
//     namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
//     ... kernels, without lambdas: they would not be compiled for the target ...
//     extern const SomeKernels kSomeKernels;
//     const SomeKernels kSomeKernels = {...};
//     }
//     HYLA_TARGET_END
//
//     #if HYLA_TARGET_ONCE
//     namespace hyla::cpu {
//     const SomeKernels& some_kernels(Target target) { return HYLA_TARGET_SELECT(kSomeKernels); }
//     }
//     #endif
//
// HYLA_TARGET_SELECT picks the variable of the namespace that belongs to `target`, which must be
// one that refuses() has nothing against. Headers that are compiled for each target too are
// guarded as cpu/simd.h is.
#pragma once

#include "cpu/target.h"

#if defined(__x86_64__)
#define HYLA_TARGET_SELECT(variable)                     \
  (target >= Target::kAvx512Bf16 ? avx512_bf16::variable \
   : target == Target::kAvx512   ? avx512::variable      \
   : target == Target::kAvx2     ? avx2::variable        \
                                 : baseline::variable)
#else
#define HYLA_TARGET_SELECT(variable) ((void)target, baseline::variable)
#endif

#ifdef HYLA_HAS_HIGHWAY
#if defined(__x86_64__)
// Whatever flags the build has, the same targets.
#define HWY_BASELINE_TARGETS HWY_BASELINE_SCALAR
#endif
// The targets between ours give little and cost compile time. AVX3_DL stands for AVX-512 BF16: the
// CPUs that have the latter have what we use of the former.
#define HWY_DISABLED_TARGETS \
  (~(HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON | HWY_EMU128 | HWY_SCALAR))
#define HWY_WANT_AVX3_DL
#define HWY_TARGET_INCLUDE HYLA_TARGET_SOURCE
#include <hwy/foreach_target.h>
#else
#include "cpu/foreach_compiled.h"
#endif
