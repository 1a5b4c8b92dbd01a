// What each of two attentions counts in their merge.
#pragma once

#include <cuda_runtime.h>

namespace hyla::attention {

struct MergeShares {
  float a = 0, b = 0, lse = -INFINITY;
  bool has_a, has_b;  // a side that saw no key does not count, whatever it holds

  __device__ __forceinline__ MergeShares(float a_lse, float b_lse)
      : has_a(!isinf(a_lse)), has_b(!isinf(b_lse)) {
    const float smaller = has_a && has_b ? __expf(-fabsf(a_lse - b_lse)) : 0;
    const float larger = __fdividef(1.0f, 1.0f + smaller);
    const bool a_first = has_a && (!has_b || a_lse >= b_lse);
    if (!has_a && !has_b) return;
    a = a_first ? larger : smaller * larger;
    b = a_first ? smaller * larger : larger;
    lse = (a_first ? a_lse : b_lse) + log1pf(smaller);
  }

  __device__ __forceinline__ float merged(float of_a, float of_b) const {
    return (has_a ? a * of_a : 0) + (has_b ? b * of_b : 0);
  }
};

}  // namespace hyla::attention
