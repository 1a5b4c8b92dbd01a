// Barriers of some of a CTA's warps; number 0 is __syncthreads().
#pragma once

namespace hyla::arch {

__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace hyla::arch
