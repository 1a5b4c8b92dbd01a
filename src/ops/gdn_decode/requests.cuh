// Loads whose order counts: the state is asked for first, or behind everything else where it waits
// for a slot, and one piece of code does both. And what the compiler must not do with what arrives.
#pragma once

#include <type_traits>

#include "device/dtype.cuh"

namespace hyla::gdn {

// 16-byte accesses; without the condition the words stay as they are. Not a branch: what stands
// behind a branch waits for all that the branch waits for.
template <class T, int Count>
__device__ __forceinline__ void load_or_keep(device::Pack<T, Count>& pack, bool condition,
                                             const void* from) {
  static_assert(device::Pack<T, Count>::kBytes % 16 == 0);
#pragma unroll
  for (int i = 0; i < device::Pack<T, Count>::kWords; i += 4) {
    std::uint32_t* words = pack.words + i;
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(static_cast<const std::uint32_t*>(from) + i), "r"(static_cast<int>(condition))
        : "memory");
  }
}

// 16-byte accesses. The compiler was seen to break one of several plain ones into words.
template <class T, int Count>
__device__ __forceinline__ void store_whole(const device::Pack<T, Count>& pack, void* to) {
  static_assert(device::Pack<T, Count>::kBytes % 16 == 0);
#pragma unroll
  for (int i = 0; i < device::Pack<T, Count>::kWords; i += 4) {
    asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<std::uint32_t*>(to) + i),
        "r"(pack.words[i]), "r"(pack.words[i + 1]), "r"(pack.words[i + 2]), "r"(pack.words[i + 3])
        : "memory");
  }
}

// 16-bit elements that are used twice: kept as floats in between they take twice the registers, and
// registers are bytes in flight. A zero in shared memory, unknown to the compiler, makes
// it unpack them again.
struct UnpackAgain {
  std::uint32_t zero;
};
struct UnpackOnce {};
template <bool Again>
using UnpackAgainIf = std::conditional_t<Again, UnpackAgain, UnpackOnce>;

template <class T, int Count>
__device__ __forceinline__ void forget(device::Pack<T, Count>& pack, const UnpackAgain& again) {
#pragma unroll
  for (std::uint32_t& word : pack.words) word ^= again.zero;
}

}  // namespace hyla::gdn
