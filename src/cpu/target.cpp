#include "cpu/target.h"

#include "cpu/amx.h"

#include <initializer_list>

#if defined(__linux__)
#include <unistd.h>
#endif

#ifdef HYLA_HAS_HIGHWAY
#include <hwy/highway.h>
#endif

namespace hyla::cpu {
namespace {

#if defined(__x86_64__)
// Everything that Highway's targets of the same name may use, asked of the machine and its system.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
#endif

bool detect(Target target) {
  switch (target) {
    case Target::kAvx2:
      return has_avx2();
    case Target::kAvx512:
      return has_avx512();
    case Target::kAvx512Bf16:
      return has_avx512_bf16();
    case Target::kAmx:
      return has_avx512_bf16() && amx_refuses() == nullptr;
    case Target::kBaseline:
      break;
  }
  return true;
}

#define HYLA_TEXT_OF(x) #x
#define HYLA_TEXT(x) HYLA_TEXT_OF(x)

}  // namespace

const char* refuses(Target target) {
  static const bool known[] = {true, detect(Target::kAvx2), detect(Target::kAvx512),
                               detect(Target::kAvx512Bf16), detect(Target::kAmx)};
  if (known[static_cast<int>(target)]) return nullptr;
  switch (target) {
    case Target::kAvx2:
      return "the CPU has no AVX2 with FMA and F16C";
    case Target::kAvx512:
      return "the CPU has no AVX-512 F, CD, BW, DQ, VL";
    case Target::kAmx:
      if (known[static_cast<int>(Target::kAvx512Bf16)]) return amx_refuses();
      [[fallthrough]];
    default:
      return "the CPU has no AVX-512 BF16";
  }
}

bool has_large_first_cache() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const bool large = sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 << 10;
  return large;
#else
  return false;
#endif
}

bool made_by_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

bool drops_crowds() { return kOtherCpus || (has_large_first_cache() && !made_by_intel()); }

const char* name_of(Target target) {
  switch (target) {
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      return "avx512";
    case Target::kAvx512Bf16:
      return "avx512_bf16";
    case Target::kAmx:
      return "amx";
    case Target::kBaseline:
      break;
  }
  return "baseline";
}

Target best_target() {
  for (const Target target : {Target::kAmx, Target::kAvx512Bf16, Target::kAvx512, Target::kAvx2}) {
    if (refuses(target) == nullptr) return target;
  }
  return Target::kBaseline;
}

#ifdef HYLA_OTHER_CPUS
#define HYLA_TILES ", AMX emulated"
#else
#define HYLA_TILES
#endif

const char* vector_library() {
#ifdef HYLA_HAS_HIGHWAY
  return "Highway " HYLA_TEXT(HWY_MAJOR) "." HYLA_TEXT(HWY_MINOR) "." HYLA_TEXT(HWY_PATCH)
      HYLA_TILES;
#else
  return "the compiler's vectors (built without Highway)" HYLA_TILES;
#endif
}

const char* threading_library() {
#ifdef _OPENMP
  return "OpenMP";
#else
  return "none (built without OpenMP): one thread unless the caller brings a pool";
#endif
}

}  // namespace hyla::cpu
