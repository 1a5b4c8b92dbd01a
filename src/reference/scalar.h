// Reading and writing single numbers of any dtype as double: the reference computes in float64 and
// rounds once, here.
#pragma once

#include <hyla/float.h>
#include <hyla/tensor.h>

#include <cmath>
#include <cstdint>

#include "core/views.h"

namespace hyla::reference {

inline double load(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[offset];
    case DType::kBFloat16:
      return static_cast<float>(static_cast<const bfloat16*>(data)[offset]);
    case DType::kFloat16:
      return static_cast<float>(static_cast<const float16*>(data)[offset]);
    case DType::kFloat8E4M3:
      return static_cast<float>(static_cast<const float8_e4m3*>(data)[offset]);
    case DType::kInt8:
      return static_cast<const std::int8_t*>(data)[offset];
    default:
      return std::nan("");
  }
}

// double -> float -> 16 bits would round twice. Rounding to odd in the first step makes the second
// one exact.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest) || !std::isfinite(value)) {
    return nearest;
  }
  // Towards zero, and odd: the next number below in magnitude where the nearest is beyond the value.
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

inline void store(void* data, DType dtype, std::int64_t offset, double value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[offset] = static_cast<float>(value);
      return;
    case DType::kBFloat16:
      static_cast<bfloat16*>(data)[offset] = bfloat16(round_to_odd(value));
      return;
    case DType::kFloat16:
      static_cast<float16*>(data)[offset] = float16(round_to_odd(value));
      return;
    case DType::kFloat8E4M3:
      static_cast<float8_e4m3*>(data)[offset] = float8_e4m3(round_to_odd(value));
      return;
    case DType::kInt8: {
      const double rounded = std::nearbyint(value);
      static_cast<std::int8_t*>(data)[offset] =
          static_cast<std::int8_t>(rounded > 127       ? 127
                                   : !(rounded > -127) ? -127  // NaN too
                                                       : rounded);
      return;
    }
    default:
      return;
  }
}

inline double load(const core::VectorView& view, std::int64_t index) {
  return load(view.data, view.dtype, index * view.stride);
}

inline double load(const core::TokenView& view, std::int64_t row, std::int64_t token,
                   std::int64_t head, std::int64_t dim = 0) {
  return load(view.data, view.dtype, view.offset(row, token, head, dim));
}

inline double sigmoid(double x) {
  if (x >= 0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

inline double silu(double x) { return std::isinf(x) && x < 0 ? 0.0 : x * sigmoid(x); }

inline double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace hyla::reference
