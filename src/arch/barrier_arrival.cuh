// A barrier of some of a CTA's warps that some of them do not wait at; the others: sync_threads().
#pragma once

namespace hyla::arch {

// What this thread did before is seen by those that wait.
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace hyla::arch
