// 16-byte copies from global to shared memory without a register (PTX ISA 7.0, cp.async).
#pragma once

#include <cstdint>

#include "arch/mbarrier.cuh"

namespace hyla::arch {

// `bytes` of 16 are read, the rest of the destination becomes zero; with 0 nothing is read.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most `Pending` of this thread's latest groups are still running.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Arrives when all copies that this thread has asked for have landed; the barrier counts it as one
// of the arrivals it was initialised with. They are ordinary writes: wgmma needs fence_async_proxy
// between the wait and itself.
__device__ __forceinline__ void arrive_when_copied(Mbarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

// Until all of this thread's copies have landed, committed or not.
__device__ __forceinline__ void wait_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace hyla::arch
