// Single numbers as floats.
#pragma once

#include <hyla/float.h>

#include "core/views.h"

namespace hyla::cpu {

inline float load_number(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::kBFloat16:
      return static_cast<float>(static_cast<const bfloat16*>(data)[offset]);
    case DType::kFloat16:
      return static_cast<float>(static_cast<const float16*>(data)[offset]);
    default:
      return static_cast<const float*>(data)[offset];
  }
}

inline void store_number(void* data, DType dtype, std::int64_t offset, float value) {
  switch (dtype) {
    case DType::kBFloat16:
      static_cast<bfloat16*>(data)[offset] = bfloat16(value);
      return;
    case DType::kFloat16:
      static_cast<float16*>(data)[offset] = float16(value);
      return;
    default:
      static_cast<float*>(data)[offset] = value;
      return;
  }
}

inline float load_number(const core::VectorView& view, std::int64_t index) {
  return load_number(view.data, view.dtype, index * view.stride);
}

}  // namespace hyla::cpu
