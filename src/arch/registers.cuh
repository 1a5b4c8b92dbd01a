// What the compiler may know about registers, and how many a warpgroup has.
#pragma once

#include <cstdint>

namespace hyla::arch {

// All warps of a warpgroup, in the one branch that is its role. A kernel starts with what its
// launch bounds give; the sum over warpgroups must fit 64 Ki registers.
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// A value that the compiler cannot see through: what is computed from it is computed where it is
// used, not kept in registers over a loop.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The same value in all lanes of a warp, as the compiler then knows: addresses made from it go to
// uniform registers.
__device__ __forceinline__ std::uint32_t uniform(std::uint32_t x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

// Neither read nor written across this point by the compiler: around asynchronous products.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <int N>
__device__ __forceinline__ void pin(std::uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

}  // namespace hyla::arch
