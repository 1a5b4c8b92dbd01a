// Loads of 16 or 8 bytes, or none, that bring more into L2: the aligned `Around` bytes that hold them,
// which a neighbour will ask for (PTX ISA 7.4, .level::prefetch_size). The text of an assembly
// statement stands in each branch: put together by the "C" constraint it made ptxas choose other
// registers.
#pragma once

#include <cstdint>

namespace hyla::arch {

// Four words; without the condition they stay as they are. Not a branch: what stands behind a
// branch waits for all that the branch waits for.
template <int Around = 0>
__device__ __forceinline__ void load_16_if(bool condition, const void* from, std::uint32_t* words) {
  static_assert(Around == 0 || Around == 128 || Around == 256);
  const int go = static_cast<int>(condition);
  if constexpr (Around == 0) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(go)
        : "memory");
  } else if constexpr (Around == 128) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(go)
        : "memory");
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(go)
        : "memory");
  }
}

// Two words, likewise.
template <int Around>
__device__ __forceinline__ void load_8_if(bool condition, const void* from, std::uint32_t* words) {
  static_assert(Around == 128);
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n"
      " @p ld.global.L2::128B.v2.u32 {%0, %1}, [%2];\n}"
      : "+r"(words[0]), "+r"(words[1])
      : "l"(from), "r"(static_cast<int>(condition))
      : "memory");
}

}  // namespace hyla::arch
