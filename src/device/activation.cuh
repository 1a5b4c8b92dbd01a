// Scalar functions of gates, in float32, safe at both ends of the range.
#pragma once

namespace hyla::device {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// max(x, 0) + log1p(exp(-|x|)): never overflows.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

}  // namespace hyla::device
