// The end of an mbarrier, before its memory is used for something else or it is initialised again.
#pragma once

#include "arch/mbarrier.cuh"

namespace hyla::arch {

// By one thread, when nobody waits for it or arrives at it any more.
__device__ __forceinline__ void invalidate(Mbarrier& barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

}  // namespace hyla::arch
