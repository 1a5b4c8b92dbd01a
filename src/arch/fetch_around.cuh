// Accesses of 16 bytes that bring more into L2: the aligned `Around` bytes that hold them, which a
// neighbour will ask for (PTX ISA 7.4, .level::prefetch_size). Or nothing, without a branch.
#pragma once

#include <cstdint>

namespace hyla::arch {

// Without the condition the words are undefined.
template <int Around>
__device__ __forceinline__ void load_16_if(bool condition, const void* from, std::uint32_t* words) {
  static_assert(Around == 128 || Around == 256);
  if constexpr (Around == 128) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(from), "r"(static_cast<int>(condition)));
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(from), "r"(static_cast<int>(condition)));
  }
}

// Without it they stay as they are.
template <int Around>
__device__ __forceinline__ void load_16_or_keep(bool condition, const void* from,
                                                std::uint32_t* words) {
  static_assert(Around == 128 || Around == 256);
  if constexpr (Around == 128) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(static_cast<int>(condition))
        : "memory");
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(static_cast<int>(condition))
        : "memory");
  }
}

template <int Around>
__device__ __forceinline__ void copy_16_if(bool condition, std::uint32_t to, const void* from) {
  static_assert(Around == 256);
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"
      " @p cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(condition))
      : "memory");
}

}  // namespace hyla::arch
