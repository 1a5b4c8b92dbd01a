// From values that a call carries to template arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::device {

// f.operator()<T>() with the type of a float dtype.
template <class F>
auto with_float_type(DType dtype, F&& f) {
  if (dtype == DType::kFloat32) return f.template operator()<float>();
  if (dtype == DType::kBFloat16) return f.template operator()<__nv_bfloat16>();
  return f.template operator()<__half>();
}

// f.operator()<K>() with one of the key dims that fast kernels take.
template <class F>
auto with_key_dim(std::int64_t K, F&& f) {
  if (K == 64) return f.template operator()<64>();
  return K == 128 ? f.template operator()<128>() : f.template operator()<256>();
}

}  // namespace hyla::device
