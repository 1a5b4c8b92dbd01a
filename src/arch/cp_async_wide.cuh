// A 16-byte copy from global to shared memory that fetches more into L2 (PTX ISA 7.4, cp.async).
#pragma once

#include <cstdint>

namespace hyla::arch {

// L2 gets the aligned 256 bytes around it, for a neighbour that wants the others soon.
__device__ __forceinline__ void copy_16_of_256(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

}  // namespace hyla::arch
