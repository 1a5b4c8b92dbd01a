// Clusters of CTAs: their barrier, and words sent into each other's shared memory.
#pragma once

#include "arch/mbarrier.cuh"

namespace hyla::arch {

// Every thread of the cluster arrives, and waits before it arrives again. Of what it wrote before,
// the others see only mbarriers behind fence_mbarrier_init(): a release would wait for memory.
__device__ __forceinline__ void arrive_at_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// *to = value in the shared memory of CTA `rank`, where `barrier` then has four bytes more. Both
// are named by their place in one's own.
__device__ __forceinline__ void send(float* to, float value, Mbarrier& barrier,
                                     std::uint32_t rank) {
  asm volatile(
      "{\n .reg .b32 place, bar;\n"
      " mapa.shared::cluster.u32 place, %0, %3;\n mapa.shared::cluster.u32 bar, %2, %3;\n"
      " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %1, [bar];\n}" ::
          "r"(shared_address(to)),
      "r"(__float_as_uint(value)), "r"(shared_address(&barrier)), "r"(rank)
      : "memory");
}

}  // namespace hyla::arch
