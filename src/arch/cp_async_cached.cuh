// A 16-byte copy from global to shared memory by way of the L1 cache (PTX ISA 7.0, cp.async).
#pragma once

#include <cstdint>

namespace hyla::arch {

// Or nothing. Not a branch: what stands behind a branch waits for all that the branch waits for.
__device__ __forceinline__ void copy_16_cached_if(bool condition, std::uint32_t to,
                                                  const void* from) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"
      " @p cp.async.ca.shared.global [%0], [%1], 16;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(condition))
      : "memory");
}

}  // namespace hyla::arch
