// What 16 tokens of a head need of each other, made by one warp: keys, queries and keys transposed
// as operands of mma, T', P and the factors of decay (the formulas of README.md for chunks of 16).
// The inverse is a substitution in float32, so only the range of the operands' type limits growth.
#pragma once

#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/pairs.cuh"
#include "ops/gdn_prefill/step_arguments.cuh"

namespace hyla::gdn {

inline constexpr int kStepPitch = 24;   // of T', so that eight rows lie in different banks
inline constexpr int kLowerPitch = 20;  // of L
// Bytes from 16 columns of keys to the next ones, so that all of a row lie in different banks.
inline constexpr int kColumnPitch = 512 + 16;

// g: running sum of log2(alpha); a, b: over the lengths of k and q, 1 without the L2 norm.
template <class Io>
struct alignas(16) StepChunk {
  // Of keys 16 m + 4 t ... + 3, lane 4 g + t: tokens g and g + 8.
  uint4 keys[8][kColumnPitch / 16], queries[8][kColumnPitch / 16];
  uint4 scores[32];                            // P
  alignas(16) Io inverse[kStep * kStepPitch];  // T'
  float entry[kStep];                          // 2^g a
  float query[kStep];                          // 2^g b scale
  float exit[kStep];                           // 2^(g_last - g) a
  float decay;                                 // 2^g_last
  // Of the warp that makes it.
  alignas(16) float lower[kStep * kLowerPitch];  // L
  alignas(16) float beta[kStep];
  float sums[kStep], key[kStep];     // g, a
  float row_l[kStep], row_p[kStep];  // beta a, scale b
};

// Byte offset of the lane's row of T' as a right operand.
__device__ __forceinline__ std::uint32_t inverse_row(int lane) {
  return static_cast<std::uint32_t>(((lane & 7) + (lane >> 4) * 8) * kStepPitch +
                                    (lane >> 3 & 1) * 8) *
         2;
}

// Where a lane's row of the matrices of 16 columns lies: in the order of a right operand over
// columns, and in that of a left one, which, transposed, is a right one over tokens.
__device__ __forceinline__ std::uint32_t over_columns(int lane) { return 16 * lane; }
__device__ __forceinline__ std::uint32_t over_tokens(int lane) {
  const int matrix = lane >> 3;
  return 16 * ((lane & 7) + 8 * (matrix == 1 ? 2 : matrix == 2 ? 1 : matrix));
}

// What a lane asks for of the tokens of a step: columns 8 (lane % 16) ... + 7 of tokens lane / 16 +
// 2 i.
struct StepWords {
  uint4 k[8], q[8];
  std::uint32_t gate;  // lanes 0-15: of a gate; lanes 16-31: of a beta
};

// Rows past the end repeat the last one: their beta is zero, and nothing comes of finite numbers.
__device__ __forceinline__ void ask_rows(const TokenBytes& view, int token, int head, int rows,
                                         uint4 (&to)[8], int lane) {
  const char* from = view.at(token, head) + 16 * (lane & 15);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    to[i] = *reinterpret_cast<const uint4*>(from + min((lane >> 4) + 2 * i, rows - 1) * view.token);
  }
}

// Into the matrices of a chunk; `to`: of keys or queries.
__device__ __forceinline__ void put_rows(const uint4 (&words)[8], uint4 (&to)[8][kColumnPitch / 16],
                                         int lane) {
  const int column = lane & 15;
  char* at = reinterpret_cast<char*>(to[column >> 1]) + 8 * (column & 1) + 16 * (lane >> 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4& x = words[i];
    char* row = at + (i >> 2) * 256 + (i & 3) * 32;
    *reinterpret_cast<uint2*>(row) = make_uint2(x.x, x.z);
    *reinterpret_cast<uint2*>(row + 128) = make_uint2(x.y, x.w);
  }
}

// Of `rows` tokens, at least one.
__device__ __forceinline__ void ask_step(const StepArguments& a, int token, int head, int rows,
                                         StepWords& words, int lane) {
  const bool beta = lane >= 16;
  const TokenBytes& scalar = beta ? a.beta : a.gate;
  const DType dtype = beta ? a.p.beta.value.dtype : a.p.gate.value.dtype;
  const bool there = (lane & 15) < rows && dtype != DType::kNone;
  const char* from = scalar.at(token + (lane & 15), head);
  words.gate = 0;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.b32 p, %2, 0;\n setp.ne.b32 q, %3, 0;\n"
      " @p ld.global.u32 %0, [%1];\n @q ld.global.u16 %0, [%1];\n}"
      : "+r"(words.gate)
      : "l"(from), "r"(static_cast<int>(there && dtype == DType::kFloat32)),
        "r"(static_cast<int>(there && dtype != DType::kFloat32)));
  ask_rows(a.k, token, a.by_k(head), rows, words.k, lane);
  ask_rows(a.q, token, a.by_q(head), rows, words.q, lane);
}

// Rate and bias of a raw gate.
__device__ __forceinline__ void set_step_head(const PrefillProblem& p, int head, ChunkInfo& info) {
  if (p.gate.kind != Gate::Kind::kRaw) return;
  constexpr float kLog2e = 1.44269504f;
  const core::VectorView &A_log = p.gate.A_log, &bias = p.gate.dt_bias;
  info.rate = kLog2e * expf(device::load_number(A_log.data, A_log.dtype, head * A_log.stride));
  info.bias = device::load_number(bias.data, bias.dtype, head * bias.stride);
}

// |x|^2 of token lane % 16, on the diagonal of a product of 16 tokens with themselves.
__device__ __forceinline__ float diagonal_of(const float (&first)[4], const float (&second)[4],
                                             int lane) {
  const bool odd = (lane >> 2 & 1) != 0;
  const float x = odd ? first[1] : first[0], y = odd ? second[3] : second[2];
  const int from = 4 * (lane & 7) + ((lane & 7) >> 1);
  const float low = __shfl_sync(device::kFullWarp, x, from);
  const float high = __shfl_sync(device::kFullWarp, y, from);
  return (lane & 8) != 0 ? high : low;
}

// Part of a row of L, for all lanes.
__device__ __forceinline__ void load_lower(std::uint32_t lower, int m, float4 (&row)[4]) {
#pragma unroll
  for (int j = 0; j < m; j += 4) {
    float4& x = row[j / 4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(lower + 4 * (m * kLowerPitch + j))
                 : "memory");
  }
}

// Row lane % 16 of T: x (I + L) = e_i from the right, times diag(beta). Rows of L come one ahead.
template <class Io>
__device__ __forceinline__ void make_inverse(StepChunk<Io>& c, int lane) {
  const int i = lane & 15;
  const std::uint32_t lower = arch::shared_address(c.lower);
  float x[kStep];
#pragma unroll
  for (int j = 0; j < kStep; ++j) x[j] = j == i ? 1.0f : 0.0f;
  float4 rows[2][4];
  load_lower(lower, kStep - 1, rows[1]);
#pragma unroll
  for (int m = kStep - 1; m > 0; --m) {
    load_lower(lower, m - 1, rows[(m - 1) & 1]);
#pragma unroll
    for (int j = m - 1; j >= 0; --j) {
      const float4& l = rows[m & 1][j / 4];
      x[j] = fmaf(-x[m], j % 4 == 0 ? l.x : j % 4 == 1 ? l.y : j % 4 == 2 ? l.z : l.w, x[j]);
    }
  }
  std::uint32_t words[8];
#pragma unroll
  for (int j = 0; j < kStep; j += 4) {
    const float4 beta = *reinterpret_cast<const float4*>(&c.beta[j]);
    words[j / 2] = pack<Io>(x[j] * beta.x, x[j + 1] * beta.y);
    words[j / 2 + 1] = pack<Io>(x[j + 2] * beta.z, x[j + 3] * beta.w);
  }
  if (lane >= 16) return;
  auto* to = reinterpret_cast<uint4*>(&c.inverse[i * kStepPitch]);
  to[0] = make_uint4(words[0], words[1], words[2], words[3]);
  to[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

// Everything of a step of `rows` tokens. `head`: rate and bias of its gate.
template <class Io>
__device__ __forceinline__ void make_step(const StepArguments& a, const ChunkInfo& head,
                                          const StepWords& words, int rows, StepChunk<Io>& c,
                                          int lane) {
  const PrefillProblem& p = a.p;
  const int i = lane & 15;
  const std::uint32_t keys = arch::shared_address(c.keys[0]);
  const std::uint32_t queries = arch::shared_address(c.queries[0]);
  put_rows(words.k, c.keys, lane);
  put_rows(words.q, c.queries, lane);
  // Gates below, betas above; then both of token i everywhere.
  float sum = 0.0f;
  if (i < rows && p.gate.kind != Gate::Kind::kNone) {
    sum = log2_alpha(p, head, device::number(words.gate, p.gate.value.dtype));
  }
#pragma unroll
  for (int d = 1; d < 16; d *= 2) {
    const float before = __shfl_up_sync(device::kFullWarp, sum, d, 16);
    if (i >= d) sum += before;
  }
  float beta = 1.0f;
  if (p.beta.kind != Beta::Kind::kNone) {
    const std::uint32_t bits = __shfl_sync(device::kFullWarp, words.gate, i + 16);
    beta = device::number(bits, p.beta.value.dtype);
    if (p.beta.kind == Beta::Kind::kLogit) beta = sigmoid(beta);
  }
  if (lane < 16) {  // not in registers during the products: there are none to spare
    c.sums[i] = sum;
    c.beta[i] = i < rows ? beta : 0.0f;
  }
  __syncwarp();
  constexpr int kAhead = 3;
  std::uint32_t k[kAhead + 1][4], q[kAhead + 1][4], right[kAhead + 1][4];
  const auto load = [&](int m) {
    arch::load_matrices(right[m % 4], keys + over_columns(lane) + kColumnPitch * m);
    arch::load_matrices(k[m % 4], keys + over_tokens(lane) + kColumnPitch * m);
    arch::load_matrices(q[m % 4], queries + over_tokens(lane) + kColumnPitch * m);
  };
#pragma unroll
  for (int m = 0; m < kAhead; ++m) load(m);
  float kk[2][4] = {}, qk[2][4] = {};
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    if (m + kAhead < 8) load(m + kAhead);
    const std::uint32_t(&r)[4] = right[m % 4];
    arch::mma_16x8x16<Io>(kk[0], k[m % 4], r[0], r[1]);
    arch::mma_16x8x16<Io>(kk[1], k[m % 4], r[2], r[3]);
    arch::mma_16x8x16<Io>(qk[0], q[m % 4], r[0], r[1]);
    arch::mma_16x8x16<Io>(qk[1], q[m % 4], r[2], r[3]);
  }
  float key = 1.0f, query = a.scale;
  if (p.l2norm) {
    float qq[2][4] = {};
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      arch::load_matrices(q[m % 4], queries + over_tokens(lane) + kColumnPitch * m);
      arch::mma_16x8x16<Io>(qq[0], q[m % 4], q[m % 4][0], q[m % 4][2]);
      arch::mma_16x8x16<Io>(qq[1], q[m % 4], q[m % 4][1], q[m % 4][3]);
    }
    key = over_root(diagonal_of(kk[0], kk[1], lane) + a.eps);
    query *= over_root(diagonal_of(qq[0], qq[1], lane) + a.eps);
  }
  if (lane < 16) {
    const float g = c.sums[i], decay = exp2_fast(g);
    c.entry[i] = decay * key;
    c.query[i] = decay * query;
    c.exit[i] = exp2_fast(c.sums[15] - g) * key;
    c.key[i] = key;
    c.row_l[i] = c.beta[i] * key;
    c.row_p[i] = query;
    if (i == 15) c.decay = decay;
  }
  __syncwarp();

  const int row = lane >> 2, column = 2 * (lane & 3);
  float scores[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // rows g, rows g + 8
    const int r = row + 8 * half;
    const float own = c.sums[r], of_l = c.row_l[r], of_p = c.row_p[r];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int j = column + 8 * tile;
      const float2 other = *reinterpret_cast<const float2*>(&c.sums[j]);
      const float2 keys = *reinterpret_cast<const float2*>(&c.key[j]);
      const float f0 = exp2_fast(fminf(own - other.x, 0.0f)) * keys.x;
      const float f1 = exp2_fast(fminf(own - other.y, 0.0f)) * keys.y;
      *reinterpret_cast<float2*>(&c.lower[r * kLowerPitch + j]) =
          make_float2(kk[tile][2 * half] * (f0 * of_l), kk[tile][2 * half + 1] * (f1 * of_l));
      scores[tile][2 * half] = j <= r ? qk[tile][2 * half] * (f0 * of_p) : 0.0f;
      scores[tile][2 * half + 1] = j + 1 <= r ? qk[tile][2 * half + 1] * (f1 * of_p) : 0.0f;
    }
  }
  c.scores[lane] =
      make_uint4(pack<Io>(scores[0][0], scores[0][1]), pack<Io>(scores[1][0], scores[1][1]),
                 pack<Io>(scores[0][2], scores[0][3]), pack<Io>(scores[1][2], scores[1][3]));
  __syncwarp();
  make_inverse(c, lane);
}

}  // namespace hyla::gdn
