// alpha and beta of a token, asked for without a wait between two requests.
#pragma once

#include "ops/gdn_mtp/block_arguments.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// A number of 32 or 16 bits: one of two registers, because a load into a register waits for the one
// before it into the same, though only one of them is ever made.
struct NumberBits {
  std::uint32_t word = 0, half = 0;

  __device__ __forceinline__ void ask_if(bool condition, bool wide, const void* data,
                                         std::int64_t offset) {
    const char* from = static_cast<const char*>(data) + offset * (wide ? 4 : 2);
    word = load_word_if(condition && wide, from);
    half = load_half_if(condition && !wide, from);
  }
  __device__ __forceinline__ std::uint32_t bits() const { return word | half; }
};

// alpha and beta of a token as they lie in memory.
template <Options O, class Io>
struct AskedGates {
  NumberBits gate, beta, A_log, dt_bias;

  static __device__ __forceinline__ bool is_wide(DType dtype) { return dtype == DType::kFloat32; }

  __device__ __forceinline__ void ask_if(bool condition, const GateArguments& a,
                                         std::int64_t gate_at, std::int64_t beta_at) {
    if constexpr (O == Options::kUsual) {
      gate.half = load_half_if(condition, static_cast<const Io*>(a.gate) + gate_at);
      beta.half = load_half_if(condition, static_cast<const Io*>(a.beta) + beta_at);
    } else {
      gate.ask_if(condition && a.gate_kind != Gate::Kind::kNone, is_wide(a.gate_dtype), a.gate,
                  gate_at);
      beta.ask_if(condition && a.beta_kind != Beta::Kind::kNone, is_wide(a.beta_dtype), a.beta,
                  beta_at);
    }
  }
  __device__ __forceinline__ void ask_head_if(bool condition, const GateArguments& a,
                                              std::uint32_t head) {
    const std::int64_t A_log_at = head * static_cast<std::int64_t>(a.A_log_stride);
    const std::int64_t dt_bias_at = head * static_cast<std::int64_t>(a.dt_bias_stride);
    if constexpr (O == Options::kUsual) {
      A_log.word = load_word_if(condition, static_cast<const float*>(a.A_log) + A_log_at);
      dt_bias.ask_if(condition, is_wide(a.dt_bias_dtype), a.dt_bias, dt_bias_at);
    } else {
      const bool raw = condition && a.gate_kind == Gate::Kind::kRaw;
      A_log.ask_if(raw, is_wide(a.A_log_dtype), a.A_log, A_log_at);
      dt_bias.ask_if(raw, is_wide(a.dt_bias_dtype), a.dt_bias, dt_bias_at);
    }
  }
  __device__ __forceinline__ HeadBits head_bits() const { return {A_log.bits(), dt_bias.bits()}; }
  __device__ __forceinline__ GateBits bits(const HeadBits& head) const {
    return {gate.bits(), beta.bits(), head.A_log, head.dt_bias};
  }
};

}  // namespace hyla::gdn
