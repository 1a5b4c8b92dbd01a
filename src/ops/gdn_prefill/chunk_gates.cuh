// Gates of a chunk: words of memory to running sums of log2(alpha) and betas, then to the factors
// that the products are multiplied by. Only differences <= 0 are exponentiated, so every factor of
// decay is in [0, 1].
#pragma once

#include "arch/maximum.cuh"
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

// A warp asks for the gates or betas of a chunk, lane l for tokens 2 l and 2 l + 1; those past the
// end are left alone. `first`: address of the first token's.
__device__ __forceinline__ void load_words(const core::TokenView& view, std::uint64_t first,
                                           int rows, std::uint32_t (&words)[64], int lane) {
  const int i = 2 * lane;
  const std::int64_t step = token_bytes(view);
  const std::uint64_t at = first + static_cast<std::uint64_t>(i * step);
  if (i < rows) load_word(&words[i], at);
  if (i + 1 < rows) load_word(&words[i + 1], at + static_cast<std::uint64_t>(step));
}
__device__ __forceinline__ void load_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  if (p.gate.kind == Gate::Kind::kNone) return;
  load_words(p.gate.value, chunk.gate, chunk.rows, gates[0], lane);
}
__device__ __forceinline__ void load_betas(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  if (p.beta.kind == Beta::Kind::kNone) return;
  load_words(p.beta.value, chunk.beta, chunk.rows, gates[1], lane);
}

// The two numbers that a lane asked for.
__device__ __forceinline__ float2 read_words(const core::TokenView& view, std::uint64_t first,
                                             const std::uint32_t (&words)[64], int lane) {
  const uint2 two = *reinterpret_cast<const uint2*>(&words[2 * lane]);
  if (view.dtype == DType::kFloat32) {
    return make_float2(__uint_as_float(two.x), __uint_as_float(two.y));
  }
  const auto step = static_cast<std::uint32_t>(token_bytes(view));
  const std::uint32_t at = static_cast<std::uint32_t>(first) + 2 * lane * step;
  return make_float2(number_in_word(two.x, view.dtype, at),
                     number_in_word(two.y, view.dtype, at + step));
}

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(alpha) with an error of a float32 rounding of alpha. NaN stays NaN, here and in sigmoid().
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
  return arch::max_or_nan(log2, kLeastLog2);
}

// 1 / (1 + 2^(-x log2(e))), off by a few float32 ulps; 0 and 1 at the ends.
__device__ __forceinline__ float sigmoid(float x) {
  constexpr float kLog2e = 1.44269504f;
  return __fdividef(1.0f, 1.0f + exp2_fast(arch::min_or_nan(-kLog2e * x, 126.0f)));
}

// Those that this thread asked for are there.
__device__ __forceinline__ void wait_for_words() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// By the warp that asked for them: the words become g, in place.
__device__ __forceinline__ void scan_gates(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  const int i = 2 * lane, rows = chunk.rows;
  float first = 0.0f, second = 0.0f;
  if (p.gate.kind != Gate::Kind::kNone) {
    wait_for_words();
    const float2 x = read_words(p.gate.value, chunk.gate, gates[0], lane);
    first = log2_alpha(p, chunk, x.x);
    second = log2_alpha(p, chunk, x.y);
    if (i >= rows) first = 0.0f;
    if (i + 1 >= rows) second = 0.0f;
  }
  const float both = first + second;
  float sum = both;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const float before = __shfl_up_sync(device::kFullWarp, sum, d);
    if (lane >= d) sum += before;
  }
  *reinterpret_cast<float2*>(&gates[0][i]) = make_float2(first + (sum - both), sum);
}

// The same: beta, and zero past the end.
__device__ __forceinline__ void make_betas(const PrefillProblem& p, const ChunkInfo& chunk,
                                           std::uint32_t (&gates)[2][64], int lane) {
  const int i = 2 * lane, rows = chunk.rows;
  float2 beta = make_float2(1.0f, 1.0f);
  if (p.beta.kind != Beta::Kind::kNone) {
    wait_for_words();
    beta = read_words(p.beta.value, chunk.beta, gates[1], lane);
    if (p.beta.kind == Beta::Kind::kLogit) beta.x = sigmoid(beta.x), beta.y = sigmoid(beta.y);
  }
  *reinterpret_cast<float2*>(&gates[1][i]) =
      make_float2(i < rows ? beta.x : 0.0f, i + 1 < rows ? beta.y : 0.0f);
}

// Operands need the range of bfloat16 (chunk.cuh).
template <class Io>
inline constexpr bool kMayBeMild = !std::is_same_v<Io, __half>;

// Whether a chunk with that sum is. By a warp, the same for all of it.
__device__ __forceinline__ bool is_mild(float last) {
  return __all_sync(device::kFullWarp, last >= kMildLog2) != 0;
}

// After the scan: whether the chunk is mild. The same for all threads.
template <class Io>
__device__ __forceinline__ bool is_mild(const std::uint32_t (&gates)[2][64]) {
  if constexpr (!kMayBeMild<Io>) return false;
  return is_mild(__uint_as_float(gates[0][63]));
}

// The token that a thread makes factors of: a warp has the 16 tokens of its rows, half of it makes
// what the state warpgroups need, the other half what its own masks need. The inverse length of its
// key is on the diagonal of K K^T, which the lanes of that row get at.
__device__ __forceinline__ int factor_token(int thread) {
  return (thread >> 5) * 16 + (thread >> 2 & 7) + (thread & 1) * 8;
}
__device__ __forceinline__ bool makes_masks(int thread) { return (thread & 2) != 0; }

// Where a row of block row 1, 2, 3 starts to decay from: the last token of the block before.
__device__ __forceinline__ float decay_from(const float* sums, int j) {
  return sums[j < 32 ? 15 : j < 48 ? 31 : 47];
}

// What the key's length goes into, without it: 2^g, or beta and when mild 2^(g_last - g) beta. The
// rest is left in `masks` and `factors`.
__device__ __forceinline__ float make_key_factors(bool mild, const std::uint32_t (&gates)[2][64],
                                                  MaskFactors& masks, Factors& factors,
                                                  int thread) {
  const int j = factor_token(thread);
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const float g = sums[j], last = sums[63];
  if (!makes_masks(thread)) {
    if (!mild) factors.exit[j] = exp2_fast(last - g);
    if (j == 0) {
      *reinterpret_cast<float2*>(factors.decay) = make_float2(exp2_fast(last), mild ? 1.0f : 0.0f);
    }
    return exp2_fast(g);
  }
  const float beta = __uint_as_float(gates[1][j]);
  if (mild) return beta * exp2_fast(last - g);
  masks.block_l[j] = beta * exp2_fast(g - decay_from(sums, j));  // unused in block 0
  if (j < 16) masks.column[column_start(1) + j] = exp2_fast(sums[15] - g);
  if (j < 32) masks.column[column_start(2) + j] = exp2_fast(sums[31] - g);
  if (j < 48) masks.column[column_start(3) + j] = exp2_fast(sums[47] - g);
  return beta;
}

// `key`: over the key's length; 1 without the L2 norm.
__device__ __forceinline__ void put_key_factors(float held, float key, MaskFactors& masks,
                                                Factors& factors, int thread) {
  float* to = makes_masks(thread) ? masks.column_t : factors.entry;
  to[factor_token(thread)] = held * key;
}

// `query`: scale, over the query's length with the L2 norm.
__device__ __forceinline__ void put_query_factors(bool mild, float query,
                                                  const std::uint32_t (&gates)[2][64],
                                                  MaskFactors& masks, Factors& factors,
                                                  int thread) {
  const int j = factor_token(thread);
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const float g = sums[j];
  if (!makes_masks(thread)) {
    factors.query[j] = exp2_fast(g) * query;
  } else if (mild) {
    masks.row_p[j] = query * exp2_fast(g - sums[63]);
  } else {
    masks.row_p[j] = query;
    masks.block_p[j] = query * exp2_fast(g - decay_from(sums, j));
  }
}

// The same of a mild chunk without a branch.
__device__ __forceinline__ float make_mild_key_factors(const std::uint32_t (&gates)[2][64],
                                                       Factors& factors, int thread) {
  const int j = factor_token(thread);
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const float g = sums[j], last = sums[63], beta = __uint_as_float(gates[1][j]);
  if (thread == 0) {
    *reinterpret_cast<float2*>(factors.decay) = make_float2(exp2_fast(last), 1.0f);
  }
  const bool masks = makes_masks(thread);
  return (masks ? beta : 1.0f) * exp2_fast(masks ? last - g : g);
}
__device__ __forceinline__ void put_mild_query_factors(float query,
                                                       const std::uint32_t (&gates)[2][64],
                                                       MaskFactors& masks, Factors& factors,
                                                       int thread) {
  const int j = factor_token(thread);
  const auto* sums = reinterpret_cast<const float*>(gates[0]);
  const bool mask = makes_masks(thread);
  float* to = mask ? masks.row_p : factors.query;
  to[j] = query * exp2_fast(mask ? sums[j] - sums[63] : sums[j]);
}

// L without column norms holds ratios of lengths, and so does its inverse: fp16 has the range for
// keys between 1/32 and 512, and for zeros. Others are rare, and cost the product once more.
__device__ __forceinline__ bool in_reach(float square, float inverse_length) {
  return square == 0.0f || (inverse_length >= 0x1p-9f && inverse_length <= 0x1p5f);
}

}  // namespace hyla::gdn
