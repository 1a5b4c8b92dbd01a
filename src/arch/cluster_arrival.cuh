// Arriving at a cluster's barrier without waiting for memory; the wait: wait_for_cluster().
#pragma once

namespace hyla::arch {

// Of what this thread wrote before, the others see only mbarriers behind fence_mbarrier_init().
__device__ __forceinline__ void arrive_at_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

}  // namespace hyla::arch
