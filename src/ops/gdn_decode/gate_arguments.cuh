// alpha and beta of a token in two steps: their bits are asked for early and read as numbers while
// the state is on its way.
#pragma once

#include <cstdint>

#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "problem/gdn.h"

namespace hyla::gdn {

// How a kernel learns its options. The usual call of an engine (raw gate and logit beta in the
// dtype of q, A_log float32, L2 norm, int32 read slots, aligned, dense states) has code of its own:
// code that is not there is not fetched. Measured on an H200, float32 VK, B = 1: 4.3 us with every
// option at run time.
enum class Options { kUsual, kAny };

struct GateArguments {
  const void *gate, *beta, *A_log, *dt_bias;
  std::uint32_t A_log_stride, dt_bias_stride;
  DType dt_bias_dtype;
  // Only for Options::kAny.
  DType gate_dtype, beta_dtype, A_log_dtype;
  Gate::Kind gate_kind;
  Beta::Kind beta_kind;
};

inline void set_gates(GateArguments& a, const Problem& p) {
  a.gate = p.gate.value.data, a.beta = p.beta.value.data;
  a.A_log = p.gate.A_log.data, a.dt_bias = p.gate.dt_bias.data;
  a.A_log_stride = static_cast<std::uint32_t>(p.gate.A_log.stride);
  a.dt_bias_stride = static_cast<std::uint32_t>(p.gate.dt_bias.stride);
  a.dt_bias_dtype = p.gate.dt_bias.dtype;
  a.gate_dtype = p.gate.value.dtype, a.beta_dtype = p.beta.value.dtype;
  a.A_log_dtype = p.gate.A_log.dtype;
  a.gate_kind = p.gate.kind, a.beta_kind = p.beta.kind;
}

// What Options::kUsual says about the gates.
inline bool has_usual_gates(const Problem& p) {
  return p.gate.kind == Gate::Kind::kRaw && p.beta.kind == Beta::Kind::kLogit &&
         p.gate.value.dtype == p.q.dtype && p.beta.value.dtype == p.q.dtype &&
         p.gate.A_log.dtype == DType::kFloat32;
}

// The gates of a token as they lie in memory: asked for early, read as numbers while the state is
// on its way.
struct GateBits {
  std::uint32_t gate = 0, beta = 0, A_log = 0, dt_bias = 0;
};

// Of the token and head at these offsets.
template <Options O, class Io>
__device__ __forceinline__ GateBits load_gates(const GateArguments& a, std::int64_t gate_offset,
                                               std::int64_t beta_offset, std::uint32_t head) {
  constexpr bool kUsual = O == Options::kUsual;
  constexpr DType kIo = device::kDTypeOf<Io>;
  const std::int64_t A_log = head * static_cast<std::int64_t>(a.A_log_stride);
  const std::int64_t dt_bias = head * static_cast<std::int64_t>(a.dt_bias_stride);
  GateBits bits;
  if (kUsual || a.gate_kind != Gate::Kind::kNone) {
    bits.gate = device::load_bits(a.gate, kUsual ? kIo : a.gate_dtype, gate_offset);
  }
  if (kUsual || a.gate_kind == Gate::Kind::kRaw) {
    bits.A_log = device::load_bits(a.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype, A_log);
    bits.dt_bias = device::load_bits(a.dt_bias, a.dt_bias_dtype, dt_bias);
  }
  if (kUsual || a.beta_kind != Beta::Kind::kNone) {
    bits.beta = device::load_bits(a.beta, kUsual ? kIo : a.beta_dtype, beta_offset);
  }
  return bits;
}

template <Options O, class Io>
__device__ __forceinline__ float alpha_of(const GateArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (!kUsual && a.gate_kind == Gate::Kind::kNone) return 1.0f;
  const float x = device::number(bits.gate, kUsual ? device::kDTypeOf<Io> : a.gate_dtype);
  if (!kUsual && a.gate_kind == Gate::Kind::kLinear) return x;
  if (!kUsual && a.gate_kind == Gate::Kind::kLog) return expf(x);
  const float A_log = device::number(bits.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype);
  return expf(-expf(A_log) * device::softplus(x + device::number(bits.dt_bias, a.dt_bias_dtype)));
}

template <Options O, class Io>
__device__ __forceinline__ float beta_of(const GateArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (!kUsual && a.beta_kind == Beta::Kind::kNone) return 1.0f;
  const float x = device::number(bits.beta, kUsual ? device::kDTypeOf<Io> : a.beta_dtype);
  return kUsual || a.beta_kind == Beta::Kind::kLogit ? device::sigmoid(x) : x;
}

}  // namespace hyla::gdn
