// mbarriers: hand-over between warps, and between the copy engine and warps. A waiter passes the
// parity of the phase it waits for: 0 for the first completion, then in turns.
#pragma once

#include "arch/shared_address.cuh"

namespace hyla::arch {

using Mbarrier = std::uint64_t;

__device__ __forceinline__ void init(Mbarrier& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

// After the last init, before another thread or the copy engine uses a barrier.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}

// One arrival for the whole warp, without a branch.
__device__ __forceinline__ void arrive_warp(Mbarrier& barrier, int lane) {
  __syncwarp();
  asm volatile(
      "{\n .reg .pred first;\n setp.eq.s32 first, %1, 0;\n"
      " @first mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(&barrier)),
      "r"(lane)
      : "memory");
}

// Arrives, and makes the phase wait for that many bytes of copies too.
__device__ __forceinline__ void arrive_expecting(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ bool is_complete(Mbarrier& barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void wait(Mbarrier& barrier, std::uint32_t parity) {
  asm volatile(
      "{\n .reg .pred p;\nAGAIN:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      " @!p bra AGAIN;\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace hyla::arch
