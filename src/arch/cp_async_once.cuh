// 16-byte copies of data that nobody reads again soon: it leaves L2 before everything else (PTX ISA
// 7.4, cache eviction policies).
#pragma once

#include <cstdint>

namespace hyla::arch {

__device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void copy_16_once(std::uint32_t to, const void* from,
                                             std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}

}  // namespace hyla::arch
