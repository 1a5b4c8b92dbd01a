// alpha and beta of one token and head, whatever their kind and dtype.
#pragma once

#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "problem/gdn.h"

namespace hyla::gdn {

__device__ __forceinline__ float gate_alpha(const GateView& gate, std::int64_t row,
                                            std::int64_t token, int head) {
  if (gate.kind == Gate::Kind::kNone) return 1.0f;
  const float x =
      device::load_number(gate.value.data, gate.value.dtype, gate.value.offset(row, token, head));
  if (gate.kind == Gate::Kind::kLinear) return x;
  if (gate.kind == Gate::Kind::kLog) return expf(x);
  const float A_log =
      device::load_number(gate.A_log.data, gate.A_log.dtype, head * gate.A_log.stride);
  const float bias =
      device::load_number(gate.dt_bias.data, gate.dt_bias.dtype, head * gate.dt_bias.stride);
  return expf(-expf(A_log) * device::softplus(x + bias));
}

__device__ __forceinline__ float gate_beta(const BetaView& beta, std::int64_t row,
                                           std::int64_t token, int head) {
  if (beta.kind == Beta::Kind::kNone) return 1.0f;
  const float x =
      device::load_number(beta.value.data, beta.value.dtype, beta.value.offset(row, token, head));
  return beta.kind == Beta::Kind::kLogit ? device::sigmoid(x) : x;
}

}  // namespace hyla::gdn
