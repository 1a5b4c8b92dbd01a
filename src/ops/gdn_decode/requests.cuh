// Loads whose order counts: the state is asked for first, or behind everything else where it waits
// for a slot, and one piece of code does both. And what the compiler must not do with what arrives.
#pragma once

#include <type_traits>

#include "arch/cp_async.cuh"
#include "arch/cp_async_if.cuh"
#include "arch/fetch_around.cuh"
#include "device/dtype.cuh"

namespace hyla::gdn {

// Where a thread's 16-byte pieces of the state wait between their uses. In registers; or in shared
// memory, from which they are read for each use and which only this thread touches: then registers
// do not limit the bytes in flight. Of two loads with opposite conditions the second leaves what the
// first has loaded. Around: bytes that L2 gets with each piece, 0 for no more.
template <class T, int Count, int Around = 0>
struct RegisterPieces {
  using Piece = device::Pack<T, device::kPerChunk<T>>;
  Piece pieces[Count];
  __device__ __forceinline__ void load_if(int i, bool condition, const void* from) {
    arch::load_16_if<Around>(condition, from, pieces[i].words);
  }
  __device__ __forceinline__ void wait() const {}
  const __device__ __forceinline__ Piece& piece(int i) const { return pieces[i]; }
};

// Pieces of 8 bytes, in registers.
template <class T, int Count, int Around>
struct HalfPieces {
  using Piece = device::Pack<T, device::kPerChunk<T> / 2>;
  Piece pieces[Count];
  __device__ __forceinline__ void load_if(int i, bool condition, const void* from) {
    arch::load_8_if<Around>(condition, from, pieces[i].words);
  }
  __device__ __forceinline__ void wait() const {}
  const __device__ __forceinline__ Piece& piece(int i) const { return pieces[i]; }
};

// Aligned like the lines that a warp's copies fill: 5 % of a step otherwise.
extern __shared__ __align__(128) uint4 decode_stage[];
template <class T, int Count, int Threads, int Around = 0>
struct StagedPieces {
  using Piece = device::Pack<T, device::kPerChunk<T>>;
  uint4* own;

  __device__ __forceinline__ void load_if(int i, bool condition, const void* from) {
    arch::copy_16_if<Around>(condition, arch::shared_address(own + i * Threads), from);
  }
  __device__ __forceinline__ void wait() const { arch::wait_all_copies(); }
  __device__ __forceinline__ Piece piece(int i) const {
    Piece piece;
    piece.load(own + i * Threads);
    return piece;
  }
};

// 16-byte accesses, or one of 8. The compiler was seen to break one of several plain ones into
// words.
template <class T, int Count>
__device__ __forceinline__ void store_whole(const device::Pack<T, Count>& pack, void* to) {
  constexpr int kBytes = device::Pack<T, Count>::kBytes;
  static_assert(kBytes == 8 || kBytes % 16 == 0);
  if constexpr (kBytes == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(pack.words[0]),
                 "r"(pack.words[1])
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < device::Pack<T, Count>::kWords; i += 4) {
      asm volatile(
          "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<std::uint32_t*>(to) + i),
          "r"(pack.words[i]), "r"(pack.words[i + 1]), "r"(pack.words[i + 2]), "r"(pack.words[i + 3])
          : "memory");
    }
  }
}

// The same, 16 bytes, behind a condition that always holds: `natural` is not below 0, which ptxas
// does not know. Without it the stores of a thread's two pieces of a line are made one behind the
// other; so the work on the second piece lies between them, which was 4 to 6 % of a step where there
// are more CTAs than multiprocessors.
template <class T, int Count>
__device__ __forceinline__ void store_apart(int natural, const device::Pack<T, Count>& pack,
                                            void* to) {
  static_assert(device::Pack<T, Count>::kBytes == 16);
  asm volatile(
      "{\n .reg .pred p;\n setp.ge.s32 p, %5, 0;\n @p st.global.v4.u32 [%0], {%1, %2, %3, "
      "%4};\n}" ::"l"(to),
      "r"(pack.words[0]), "r"(pack.words[1]), "r"(pack.words[2]), "r"(pack.words[3]), "r"(natural)
      : "memory");
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
