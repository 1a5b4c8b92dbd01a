// Gates of a chunk: words of memory to running sums of log2(alpha) and betas, then to the factors
// that the products are multiplied by. Only differences <= 0 are exponentiated, so every factor of
// decay is in [0, 1].
#pragma once

#include "arch/registers.cuh"
#include "arch/shared_address.cuh"
#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/pairs.cuh"

namespace hyla::gdn {

// 2^-150 is zero in float32, and sums over a chunk stay finite: alpha = 0 wipes the state without
// an infinity anywhere.
inline constexpr float kLeastLog2 = -150.0f;

// Asks for the 4 aligned bytes that hold an element; 16-bit elements are picked out later.
__device__ __forceinline__ void load_word(std::uint32_t* to, const core::TokenView& view, int token,
                                          int head) {
  const auto size = view.dtype == DType::kFloat32 ? 4 : 2;
  const auto address =
      reinterpret_cast<std::uint64_t>(view.data) +
      static_cast<std::uint64_t>(view.offset(0, token, head)) * static_cast<std::uint64_t>(size);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(arch::shared_address(to)),
               "l"(address & ~std::uint64_t{3})
               : "memory");
}

__device__ __forceinline__ float number_in_word(std::uint32_t word, const core::TokenView& view,
                                                int token, int head) {
  if (view.dtype == DType::kFloat32) return __uint_as_float(word);
  const auto index = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(view.data) >> 1) +
                     static_cast<std::uint32_t>(view.offset(0, token, head));
  return device::number(index & 1 ? word >> 16 : word & 0xffff, view.dtype);
}

// Lane l asks for tokens 2 l and 2 l + 1; those past the end are left alone.
__device__ __forceinline__ void load_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
#pragma unroll
  for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
    if (i >= chunk.rows) break;
    if (p.gate.kind != Gate::Kind::kNone) {
      load_word(&gates[0][i], p.gate.value, chunk.token + i, chunk.head);
    }
    if (p.beta.kind != Beta::Kind::kNone) {
      load_word(&gates[1][i], p.beta.value, chunk.token + i, chunk.head);
    }
  }
}

__device__ __forceinline__ float log2_alpha(const PrefillProblem& p, const ChunkInfo& chunk,
                                            std::uint32_t word, int i) {
  if (i >= chunk.rows || p.gate.kind == Gate::Kind::kNone) return 0.0f;
  const float x = number_in_word(word, p.gate.value, chunk.token + i, chunk.head);
  float log2;
  if (p.gate.kind == Gate::Kind::kLinear) {
    log2 = log2f(x);
  } else if (p.gate.kind == Gate::Kind::kLog) {
    log2 = x * 1.44269504f;
  } else {
    log2 = -chunk.rate * device::softplus(x + chunk.bias);
  }
  return fmaxf(log2, kLeastLog2);
}

__device__ __forceinline__ float chunk_beta(const PrefillProblem& p, const ChunkInfo& chunk,
                                            std::uint32_t word, int i) {
  if (i >= chunk.rows) return 0.0f;
  if (p.beta.kind == Beta::Kind::kNone) return 1.0f;
  const float x = number_in_word(word, p.beta.value, chunk.token + i, chunk.head);
  return p.beta.kind == Beta::Kind::kLogit ? device::sigmoid(x) : x;
}

// By one warp: the words become g and beta, in place.
__device__ __forceinline__ void scan_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  asm volatile("cp.async.wait_all;" ::: "memory");
  const int i = 2 * lane;
  const uint2 words = *reinterpret_cast<const uint2*>(&gates[0][i]);
  const float first = log2_alpha(p, chunk, words.x, i);
  const float both = first + log2_alpha(p, chunk, words.y, i + 1);
  float sum = both;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const float before = __shfl_up_sync(device::kFullWarp, sum, d);
    if (lane >= d) sum += before;
  }
  *reinterpret_cast<float2*>(&gates[0][i]) = make_float2(first + (sum - both), sum);
  const uint2 betas = *reinterpret_cast<const uint2*>(&gates[1][i]);
  *reinterpret_cast<float2*>(&gates[1][i]) =
      make_float2(chunk_beta(p, chunk, betas.x, i), chunk_beta(p, chunk, betas.y, i + 1));
}

// By the 128 threads of an auxiliary warpgroup: the first half writes what the state warpgroups
// need, the second what its own masks need. With the L2 norm, masks.key and masks.row_p are there
// already.
__device__ __forceinline__ void make_factors(const PrefillProblem& p,
                                             const std::uint32_t (&gates)[2][64],
                                             MaskFactors& masks, Factors& factors, int thread) {
  const int j = thread & 63;
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const float g = sums[j];
  const float scale = static_cast<float>(p.scale);
  const bool normalised = arch::opaque(p.l2norm) != 0;
  const float a = normalised ? masks.key[j] : 1.0f;
  const float b = normalised ? masks.row_p[j] : scale;
  if (thread < 64) {
    const float last = sums[63], entry = exp2_fast(g);
    factors.entry[j] = entry * a;
    factors.query[j] = entry * b;
    factors.exit[j] = exp2_fast(last - g) * a;
    masks.g[j] = g;
    if (j == 0) factors.decay[0] = exp2_fast(last);
  } else {
    const float beta = __uint_as_float(gates[1][j]);
    const float r1 = sums[15], r2 = sums[31], r3 = sums[47];
    const float decay = exp2_fast(g - (j < 32 ? r1 : j < 48 ? r2 : r3));  // unused in block 0
    masks.beta[j] = beta;
    masks.row_l[j] = beta * a;
    if (!normalised) masks.row_p[j] = b;
    masks.block_l[j] = decay * beta * a;
    masks.block_p[j] = decay * b;
    if (j < 16) masks.column[0][j] = exp2_fast(r1 - g) * a;
    if (j < 32) masks.column[1][j] = exp2_fast(r2 - g) * a;
    if (j < 48) masks.column[2][j] = exp2_fast(r3 - g) * a;
  }
}

}  // namespace hyla::gdn
