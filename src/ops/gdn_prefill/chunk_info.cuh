// Which tokens and heads a chunk has.
#pragma once

#include "device/dtype.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

struct alignas(16) ChunkInfo {
  int rows;   // tokens; 0: there are no more chunks
  int token;  // the first one
  int head, q_head, k_head, v_head;
  float rate, bias;          // of a raw gate: log2(alpha) = -rate * softplus(value + bias)
  std::uint64_t gate, beta;  // addresses of the first token's
};

// Tokens of a row; offsets that point outside the batch are clamped.
__device__ __forceinline__ void find_tokens(const PrefillProblem& p, int row, int& begin,
                                            int& length) {
  const std::int64_t total = p.sequences.tokens;
  const std::int64_t b = max(std::int64_t{0}, min(p.sequences.begin(row), total));
  begin = static_cast<int>(b);
  length = static_cast<int>(max(std::int64_t{0}, min(p.sequences.length(row), total - b)));
}

__device__ __forceinline__ std::int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

__device__ __forceinline__ std::uint64_t address_of(const core::TokenView& view, int token,
                                                    int head) {
  return reinterpret_cast<std::uint64_t>(view.data) +
         static_cast<std::uint64_t>(view.offset(0, token, head) * bytes_of(view.dtype));
}

// What is the same for all chunks of a head.
__device__ __forceinline__ void set_head(const FusedArguments& a, int head, ChunkInfo& info) {
  const PrefillProblem& p = a.p;
  info.head = head;
  info.q_head = a.by_q(head);
  info.k_head = a.by_k(head);
  info.v_head = a.by_v(head);
  if (p.gate.kind == Gate::Kind::kRaw) {
    constexpr float kLog2e = 1.44269504f;
    info.rate = kLog2e * expf(device::load_number(p.gate.A_log.data, p.gate.A_log.dtype,
                                                  head * p.gate.A_log.stride));
    info.bias = device::load_number(p.gate.dt_bias.data, p.gate.dt_bias.dtype,
                                    head * p.gate.dt_bias.stride);
  }
}

// What is not.
__device__ __forceinline__ void set_tokens(const PrefillProblem& p, int token, int rows,
                                           ChunkInfo& info) {
  info.token = token;
  info.rows = rows;
  info.gate = address_of(p.gate.value, token, info.head);
  info.beta = address_of(p.beta.value, token, info.head);
}

}  // namespace hyla::gdn
