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
__device__ __forceinline__ void load_word(std::uint32_t* to, std::uint64_t address) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(arch::shared_address(to)),
               "l"(address & ~std::uint64_t{3})
               : "memory");
}

__device__ __forceinline__ float number_in_word(std::uint32_t word, DType dtype,
                                                std::uint64_t address) {
  if (dtype == DType::kFloat32) return __uint_as_float(word);
  return device::number(static_cast<std::uint32_t>(address) & 2 ? word >> 16 : word & 0xffff,
                        dtype);
}

__device__ __forceinline__ std::int64_t token_bytes(const core::TokenView& view) {
  return view.token_stride * bytes_of(view.dtype);
}

// Lane l asks for tokens 2 l and 2 l + 1; those past the end are left alone.
__device__ __forceinline__ void load_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  const int i = 2 * lane, rows = chunk.rows;
  if (p.gate.kind != Gate::Kind::kNone) {
    const std::int64_t step = token_bytes(p.gate.value);
    const std::uint64_t first = chunk.gate + static_cast<std::uint64_t>(i * step);
    if (i < rows) load_word(&gates[0][i], first);
    if (i + 1 < rows) load_word(&gates[0][i + 1], first + static_cast<std::uint64_t>(step));
  }
  if (p.beta.kind != Beta::Kind::kNone) {
    const std::int64_t step = token_bytes(p.beta.value);
    const std::uint64_t first = chunk.beta + static_cast<std::uint64_t>(i * step);
    if (i < rows) load_word(&gates[1][i], first);
    if (i + 1 < rows) load_word(&gates[1][i + 1], first + static_cast<std::uint64_t>(step));
  }
}

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(alpha) with an error of a float32 rounding of alpha.
__device__ __forceinline__ float log2_alpha(const PrefillProblem& p, const ChunkInfo& chunk,
                                            float x) {
  constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
  float log2;
  if (p.gate.kind == Gate::Kind::kLinear) {
    log2 = log2_fast(x);
  } else if (p.gate.kind == Gate::Kind::kLog) {
    log2 = x * kLog2e;
  } else {
    const float y = x + chunk.bias;
    const float softplus = fmaxf(y, 0.0f) + kLn2 * log2_fast(1.0f + exp2_fast(-kLog2e * fabsf(y)));
    log2 = -chunk.rate * softplus;
  }
  return fmaxf(log2, kLeastLog2);
}

// Those that this thread asked for are there.
__device__ __forceinline__ void wait_for_gates() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// By one warp: the words become g and beta, in place.
__device__ __forceinline__ void scan_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  wait_for_gates();
  const int i = 2 * lane, rows = chunk.rows;
  const bool here = i < rows, both_here = i + 1 < rows;
  float first = 0.0f, second = 0.0f;
  if (p.gate.kind != Gate::Kind::kNone) {
    const uint2 words = *reinterpret_cast<const uint2*>(&gates[0][i]);
    const std::uint64_t step = static_cast<std::uint64_t>(token_bytes(p.gate.value));
    const std::uint64_t at = chunk.gate + static_cast<std::uint64_t>(i) * step;
    const DType dtype = p.gate.value.dtype;
    first = log2_alpha(p, chunk, number_in_word(words.x, dtype, at));
    second = log2_alpha(p, chunk, number_in_word(words.y, dtype, at + step));
    if (!here) first = 0.0f;
    if (!both_here) second = 0.0f;
  }
  const float both = first + second;
  float sum = both;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const float before = __shfl_up_sync(device::kFullWarp, sum, d);
    if (lane >= d) sum += before;
  }
  *reinterpret_cast<float2*>(&gates[0][i]) = make_float2(first + (sum - both), sum);
  float2 beta = make_float2(1.0f, 1.0f);
  if (p.beta.kind != Beta::Kind::kNone) {
    const uint2 words = *reinterpret_cast<const uint2*>(&gates[1][i]);
    const std::uint64_t step = static_cast<std::uint64_t>(token_bytes(p.beta.value));
    const std::uint64_t at = chunk.beta + static_cast<std::uint64_t>(i) * step;
    beta.x = number_in_word(words.x, p.beta.value.dtype, at);
    beta.y = number_in_word(words.y, p.beta.value.dtype, at + step);
    if (p.beta.kind == Beta::Kind::kLogit) {
      beta.x = device::sigmoid(beta.x), beta.y = device::sigmoid(beta.y);
    }
  }
  *reinterpret_cast<float2*>(&gates[1][i]) =
      make_float2(here ? beta.x : 0.0f, both_here ? beta.y : 0.0f);
}

// After the scan: whether the chunk is mild. The same for all threads.
template <class Io>
__device__ __forceinline__ bool is_mild(const std::uint32_t (&gates)[2][64]) {
  if constexpr (std::is_same_v<Io, __half>) return false;
  return __all_sync(device::kFullWarp, __uint_as_float(gates[0][63]) >= kMildLog2) != 0;
}

// By the 128 threads of an auxiliary warpgroup, a warp for the 16 tokens of its rows: half of it
// writes what the state warpgroups need, the other half what its own masks need. With the L2 norm,
// masks.key and masks.query of these tokens are there already.
__device__ __forceinline__ void make_factors(const FusedArguments& arguments, bool mild,
                                             const std::uint32_t (&gates)[2][64],
                                             MaskFactors& masks, Factors& factors, int thread) {
  const int j = (thread >> 5) * 16 + (thread & 15);
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const float g = sums[j], last = sums[63];
  const bool normalised = arch::opaque(arguments.p.l2norm) != 0;
  const float a = normalised ? masks.key[j] : 1.0f;
  const float b = normalised ? masks.query[j] : arguments.scale;
  if ((thread & 16) == 0) {
    const float entry = exp2_fast(g);
    factors.entry[j] = entry * a;
    factors.query[j] = entry * b;
    if (!mild) factors.exit[j] = exp2_fast(last - g);
    if (j == 0) {
      *reinterpret_cast<float2*>(factors.decay) = make_float2(exp2_fast(last), mild ? 1.0f : 0.0f);
    }
    return;
  }
  const float beta = __uint_as_float(gates[1][j]);
  masks.row_l[j] = beta * a;
  if (mild) {
    masks.row_p[j] = b * exp2_fast(g - last);
    masks.column_t[j] = beta * exp2_fast(last - g);
    return;
  }
  const float r1 = sums[15], r2 = sums[31], r3 = sums[47];
  const float decay = exp2_fast(g - (j < 32 ? r1 : j < 48 ? r2 : r3));  // unused in block 0
  masks.row_p[j] = b;
  masks.column_t[j] = beta;
  masks.block_l[j] = decay * beta * a;
  masks.block_p[j] = decay * b;
  if (j < 16) masks.column[column_start(1) + j] = exp2_fast(r1 - g);
  if (j < 32) masks.column[column_start(2) + j] = exp2_fast(r2 - g);
  if (j < 48) masks.column[column_start(3) + j] = exp2_fast(r3 - g);
}

}  // namespace hyla::gdn
