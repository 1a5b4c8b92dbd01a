// Comparisons that a C++ operator does not give in one instruction.
#pragma once

namespace hyla::arch {

// The larger; NaN when either is.
__device__ __forceinline__ float max_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// The smaller; NaN when either is.
__device__ __forceinline__ float min_or_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

}  // namespace hyla::arch
