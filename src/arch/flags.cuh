// Words in global memory by which a running grid tells another one that something is there.
#pragma once

#include <cstdint>

namespace hyla::arch {

// What the thread has written, by the copy engine too once it has waited for that, is seen by
// whoever sees the word.
__device__ __forceinline__ void raise_flag(std::uint32_t* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}

// Says nothing about other memory until fence_behind_flags().
__device__ __forceinline__ bool flag_raised(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value != 0;
}

// What others wrote before they raised flags that were seen is seen as well.
__device__ __forceinline__ void fence_behind_flags() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// The same for the copy engine, by a thread that another one of the CTA has told.
__device__ __forceinline__ void fence_behind_count() {
  asm volatile("fence.acq_rel.cta;\n\tfence.proxy.async.global;" ::: "memory");
}

}  // namespace hyla::arch
