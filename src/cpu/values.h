// Single numbers as floats, and the gates made of them.
#pragma once

#include <hyla/float.h>

#include <cmath>

#include "problem/gdn.h"

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

inline float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

inline float softplus(float x) { return std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

// ln(alpha), which may be -inf.
inline float log_alpha_of(const gdn::GateView& gate, std::int64_t row, std::int64_t token,
                          std::int64_t head) {
  using Kind = gdn::Gate::Kind;
  if (gate.kind == Kind::kNone) return 0.0f;
  const float value =
      load_number(gate.value.data, gate.value.dtype, gate.value.offset(row, token, head));
  if (gate.kind == Kind::kLog) return value;
  if (gate.kind == Kind::kLinear) return std::log(value);
  return -std::exp(load_number(gate.A_log, head)) *
         softplus(value + load_number(gate.dt_bias, head));
}

inline float alpha_of(const gdn::GateView& gate, std::int64_t row, std::int64_t token,
                      std::int64_t head) {
  using Kind = gdn::Gate::Kind;
  if (gate.kind == Kind::kNone) return 1.0f;
  if (gate.kind == Kind::kLinear) {
    return load_number(gate.value.data, gate.value.dtype, gate.value.offset(row, token, head));
  }
  return std::exp(log_alpha_of(gate, row, token, head));
}

inline float beta_of(const gdn::BetaView& beta, std::int64_t row, std::int64_t token,
                     std::int64_t head) {
  using Kind = gdn::Beta::Kind;
  if (beta.kind == Kind::kNone) return 1.0f;
  const float value =
      load_number(beta.value.data, beta.value.dtype, beta.value.offset(row, token, head));
  return beta.kind == Kind::kLogit ? sigmoid(value) : value;
}

}  // namespace hyla::cpu
