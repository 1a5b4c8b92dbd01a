// Barriers of some of a CTA's warps; number 0 is __syncthreads().
#pragma once

namespace hyla::arch {

__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same, and whether `mine` is true of any of them.
__device__ __forceinline__ bool sync_any(int barrier, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.s32 p, %3, 0;\n bar.red.or.pred q, %1, %2, p;\n"
      " selp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

}  // namespace hyla::arch
