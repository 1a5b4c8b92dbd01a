// A 16-byte copy from global to shared memory, or nothing, and what the caches get by it (PTX ISA
// 7.0, cp.async; 7.4, .level::prefetch_size).
#pragma once

#include <cstdint>

namespace hyla::arch {

// Those that a copy fills on its way.
enum class Caches { kL2, kL1 };  // kL1: both

// Not a branch: what stands behind a branch waits for all that the branch waits for. Around: L2
// gets the aligned 256 bytes that hold these, for a neighbour that wants the others soon.
template <int Around = 0, Caches To = Caches::kL2>
__device__ __forceinline__ void copy_16_if(bool condition, std::uint32_t to, const void* from) {
  static_assert(Around == 0 || (Around == 256 && To == Caches::kL2));
  const int go = static_cast<int>(condition);
  if constexpr (To == Caches::kL1) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"
        " @p cp.async.ca.shared.global [%0], [%1], 16;\n}" ::"r"(to),
        "l"(from), "r"(go)
        : "memory");
  } else if constexpr (Around == 0) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"
        " @p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to),
        "l"(from), "r"(go)
        : "memory");
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"
        " @p cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n}" ::"r"(to),
        "l"(from), "r"(go)
        : "memory");
  }
}

}  // namespace hyla::arch
