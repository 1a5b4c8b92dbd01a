// Words in global memory by which a running grid tells another one that something is there.
#pragma once

#include <cstdint>

namespace hyla::arch {

// What the thread has written, by the copy engine too once it has waited for that, is seen by
// whoever sees the word.
__device__ __forceinline__ void raise_flag(std::uint32_t* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}

// If so, what was written before it was raised is seen as well.
__device__ __forceinline__ bool flag_raised(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value != 0;
}

// The same for the copy engine, behind a flag that was seen.
__device__ __forceinline__ void fence_behind_flag() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace hyla::arch
