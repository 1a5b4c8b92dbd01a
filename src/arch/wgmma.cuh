// wgmma: products by a warpgroup, asynchronous. The life of a group:
//
//     pin(registers);  wgmma_fence();  wgmma...;  wgmma_commit();  wgmma_wait<0>();  pin(registers)
//
// The fence is needed whenever other instructions wrote an accumulator or a register operand; the
// pins keep the compiler from moving accesses into the group.
//
// Operands in shared memory are tiles of 128-byte rows under the 128-byte swizzle, aligned to 1024
// bytes, named by a descriptor. K-major (a row holds 64 consecutive k): the next 16 of k are 32
// bytes on, the next 8 rows 1024. MN-major (a row holds 64 consecutive m or n): the next 16 of k
// are 2048 bytes on, the next 64 of m or n `leading` bytes.
#pragma once

#include "arch/registers.cuh"
#include "arch/shared_address.cuh"

namespace hyla::arch {

using WgmmaDescriptor = std::uint64_t;

// Adding n to a descriptor moves it by 16 n bytes.
__device__ __forceinline__ WgmmaDescriptor descriptor(std::uint32_t address,
                                                      std::uint32_t leading = 16) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62, kEightRows = 1024ull >> 4;
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>(leading >> 4) << 16 | kEightRows << 32 | kSwizzle128;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

}  // namespace hyla::arch
