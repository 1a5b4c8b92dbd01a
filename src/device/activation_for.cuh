// Activations as exact as a result of type Io can show: two instructions of the special function
// unit, off by a few float32 ulps, where it is rounded to 16 bits.
#pragma once

#include "arch/exponential.cuh"
#include "arch/maximum.cuh"
#include "device/activation.cuh"

namespace hyla::device {

template <class Io>
__device__ __forceinline__ float sigmoid_for(float x) {
  if constexpr (sizeof(Io) == 2) {
    constexpr float kLog2E = 1.44269504f;
    return arch::reciprocal_fast(1.0f + arch::exp2_fast(-kLog2E * x));
  } else {
    return sigmoid(x);
  }
}

// -infinity counts as the lowest number, so that its product with a closed gate is 0.
template <class Io>
__device__ __forceinline__ float silu_for(float x) {
  return arch::max_or_nan(x, -3.4028235e38f) * sigmoid_for<Io>(x);
}

}  // namespace hyla::device
