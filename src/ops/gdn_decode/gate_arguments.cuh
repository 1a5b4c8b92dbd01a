// alpha and beta of a token in two steps: their bits are asked for early and read as numbers while
// the state is on its way.
#pragma once

#include <cstdint>

#include "arch/exponential.cuh"
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
         p.gate.A_log.dtype == DType::kFloat32 &&
         (p.gate.dt_bias.dtype == DType::kFloat32 || p.gate.dt_bias.dtype == p.q.dtype);
}

// The gates of a token as they lie in memory: asked for early, read as numbers while the state is
// on its way.
struct GateBits {
  std::uint32_t gate = 0, beta = 0, A_log = 0, dt_bias = 0;
};

// Of the token at this offset and this head.
template <Options O, class Io>
__device__ __forceinline__ void load_alpha(const GateArguments& a, std::int64_t offset,
                                           std::uint32_t head, GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  const std::int64_t A_log = head * static_cast<std::int64_t>(a.A_log_stride);
  const std::int64_t dt_bias = head * static_cast<std::int64_t>(a.dt_bias_stride);
  if (kUsual || a.gate_kind != Gate::Kind::kNone) {
    bits.gate = device::load_bits(a.gate, kUsual ? device::kDTypeOf<Io> : a.gate_dtype, offset);
  }
  if (kUsual || a.gate_kind == Gate::Kind::kRaw) {
    bits.A_log = device::load_bits(a.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype, A_log);
    bits.dt_bias = device::load_bits(a.dt_bias, a.dt_bias_dtype, dt_bias);
  }
}

template <Options O, class Io>
__device__ __forceinline__ void load_beta(const GateArguments& a, std::int64_t offset,
                                          GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (kUsual || a.beta_kind != Beta::Kind::kNone) {
    bits.beta = device::load_bits(a.beta, kUsual ? device::kDTypeOf<Io> : a.beta_dtype, offset);
  }
}

// Both, of the token and head at these offsets.
template <Options O, class Io>
__device__ __forceinline__ GateBits load_gates(const GateArguments& a, std::int64_t gate_offset,
                                               std::int64_t beta_offset, std::uint32_t head) {
  GateBits bits;
  load_alpha<O, Io>(a, gate_offset, head, bits);
  load_beta<O, Io>(a, beta_offset, bits);
  return bits;
}

// The gates wait for memory as long as the state does, and the state then waits for them: a short
// chain of instructions matters more than the last bit. Off by a few float32 ulps.
namespace gates {

inline constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float exp_fast(float x) { return arch::exp2_fast(kLog2E * x); }

// log(1 + u), 0 <= u <= 1: 2 atanh(s) of s = u / (2 + u) <= 1/3, within 3e-8 and rounding.
__device__ __forceinline__ float log1p_fast(float u) {
  const float s = u * arch::reciprocal_fast(2.0f + u), z = s * s;
  const float series = 1.0f / 3 + z * (1.0f / 5 + z * (0.14185714f + z * 0.13111111f));
  return 2.0f * s + 2.0f * s * z * series;
}

// max(x, 0) + log1p(exp(-|x|)): never overflows, keeps NaN.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1p_fast(exp_fast(-fabsf(x)));
}

__device__ __forceinline__ float sigmoid(float x) {
  return arch::reciprocal_fast(1.0f + exp_fast(-x));
}

}  // namespace gates

template <Options O, class Io>
__device__ __forceinline__ float alpha_of(const GateArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  constexpr DType kIo = device::kDTypeOf<Io>;
  if (!kUsual && a.gate_kind == Gate::Kind::kNone) return 1.0f;
  const float x = device::number(bits.gate, kUsual ? kIo : a.gate_dtype);
  if (!kUsual && a.gate_kind == Gate::Kind::kLinear) return x;
  if (!kUsual && a.gate_kind == Gate::Kind::kLog) return expf(x);
  const float A_log = device::number(bits.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype);
  float bias;
  if constexpr (kUsual) {
    bias = a.dt_bias_dtype == DType::kFloat32 ? __uint_as_float(bits.dt_bias)
                                              : device::number(bits.dt_bias, kIo);
  } else {
    bias = device::number(bits.dt_bias, a.dt_bias_dtype);
  }
  return gates::exp_fast(-gates::exp_fast(A_log) * gates::softplus(x + bias));
}

template <Options O, class Io>
__device__ __forceinline__ float beta_of(const GateArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (!kUsual && a.beta_kind == Beta::Kind::kNone) return 1.0f;
  const float x = device::number(bits.beta, kUsual ? device::kDTypeOf<Io> : a.beta_dtype);
  return kUsual || a.beta_kind == Beta::Kind::kLogit ? gates::sigmoid(x) : x;
}

}  // namespace hyla::gdn
