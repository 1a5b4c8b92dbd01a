// The instruction sets that the CPU kernels are compiled for. A kernel source is compiled once for
// each; implementation tables have one row for each, so that a call can force one by name.
#pragma once

#include <cstdint>

namespace hyla::cpu {

enum class Target {
  kBaseline,    // what the compiler may use on every machine of this kind
  kAvx2,        // with FMA and F16C
  kAvx512,      // F, CD, BW, DQ, VL
  kAvx512Bf16,  // with dot products of bfloat16 pairs (Zen 4, Sapphire Rapids)
  kAmx,         // that, with products by AMX where a kernel has them (Sapphire Rapids)
};

// A build for tests that goes the ways of CPUs that this one is not: tiles of AMX are emulated, and
// requests for memory are made as if they were lost in crowds.
#ifdef HYLA_OTHER_CPUS
inline constexpr bool kOtherCpus = true;
#else
inline constexpr bool kOtherCpus = false;
#endif

// Null where this machine and this build have it, otherwise why not.
const char* refuses(Target target);

// 48 KiB of data or more in the nearest cache of a core; false where the system does not say.
bool has_large_first_cache();
bool made_by_intel();
// Whether requests for memory are lost where many come at once, so that fewer of them, an even pace
// and little distance are best (AMD's processors with a large first cache; measured on Zen 5).
bool drops_crowds();

// More than this does not stay in a cache until someone reads it.
inline constexpr std::int64_t kCacheBytes = 16 << 20;

const char* name_of(Target target);  // "avx512_bf16"
Target best_target();

const char* vector_library();     // "Highway 1.0.3", or that there is none
const char* threading_library();  // "OpenMP", or that there is none

}  // namespace hyla::cpu
