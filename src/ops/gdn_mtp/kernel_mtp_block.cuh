// Several tokens a row through the tensor cores, a block of up to 8 tokens at a time: the state is
// read once, both dots of all tokens with it are matrix products, what the tokens do to each other
// is a small triangular system, and the update is a matrix product again.
//
// q and k in 16 bits are exact tf32 operands; a float32 state is split into two of them, so nothing
// is lost but the last bits of float32. README.md has the math and the drawing.
#pragma once

#include <cooperative_groups.h>

#include "arch/grid_dependency.cuh"
#include "arch/mma.cuh"
#include "device/activation.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_state.cuh"

namespace hyla::gdn {

struct Tf32Pair {
  std::uint32_t high, low;
};

__device__ __forceinline__ Tf32Pair split(float x) {
  const std::uint32_t high = __float_as_uint(x);
  return {high, __float_as_uint(x - __uint_as_float(high & 0xffffe000u))};
}

// y and o of a lane: rows 2 g + n, tokens 2 t + e.
struct BlockSums {
  float y[2][2], o[2][2];
};

// k.S and q.S of token g: rows 4 t + 0..3 of the warp.
struct BlockDots {
  float k[4], q[4];

  // Rows 2 g + n are the columns of product n, which comes in several parts.
  template <int Chains>
  __device__ __forceinline__ explicit BlockDots(const float (&sum)[2][Chains][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k[2 * i + n] = q[2 * i + n] = 0;
#pragma unroll
        for (int chain = 0; chain < Chains; ++chain) {
          k[2 * i + n] += sum[n][chain][i];
          q[2 * i + n] += sum[n][chain][2 + i];
        }
      }
    }
  }
};

// One step of the dots of 16 rows, which are the columns of two products; the tokens' k and q are
// the rows. Split: the state is not a tf32 number, so its low part has products of its own, of half
// as many steps where bfloat16 can hold it.
template <class P, bool Split>
__device__ __forceinline__ void add_dots(const MtpBlockShared<P>& shared, const StepRows& rows,
                                         int j, int lane, float (&sum)[2][P::kChains][4]) {
  using Io = typename P::Io;
  constexpr int kHigh = P::kChains / 2;
  constexpr bool kShortLow = Split && std::is_same_v<Io, __nv_bfloat16>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = shared.keys[j][half][lane];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = 2 * half + i;
      uint4 keys;
      widen<Io>(i == 0 ? words.x : words.z, keys.x, keys.z);
      widen<Io>(i == 0 ? words.y : words.w, keys.y, keys.w);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* s = &rows.s[m][2 * n];
        arch::mma_16x8x8_tf32(sum[n][i % kHigh], keys.x, keys.y, keys.z, keys.w,
                              __float_as_uint(s[0]), __float_as_uint(s[1]));
        if constexpr (Split && !kShortLow) {
          arch::mma_16x8x8_tf32(sum[n][kHigh + i % kHigh], keys.x, keys.y, keys.z, keys.w,
                                split(s[0]).low, split(s[1]).low);
        }
      }
    }
    if constexpr (kShortLow) {
      const std::uint32_t a[] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        std::uint32_t low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* s = &rows.s[2 * half + i][2 * n];
          device::Pack<Io, 2> pack;
          const float pair[2] = {__uint_as_float(split(s[0]).low),
                                 __uint_as_float(split(s[1]).low)};
          pack.pack(pair);
          low[i] = pack.words[0];
        }
        arch::mma_16x8x16<Io>(sum[n][kHigh + half % kHigh], a, low[0], low[1]);
      }
    }
  }
}

// The same for a state in the dtype of q and k, which the tensor cores take as it is.
template <class P>
__device__ __forceinline__ void add_dots(const MtpBlockShared<P>& shared,
                                         const PackedStep<typename P::State>& rows, int j, int lane,
                                         float (&sum)[2][P::kChains][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 keys = shared.keys[j][half][lane];
    const std::uint32_t a[] = {keys.x, keys.y, keys.z, keys.w};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      arch::mma_16x8x16<typename P::Io>(sum[n][(2 * j + half) % P::kChains], a,
                                        rows.words[2 * half][n], rows.words[2 * half + 1][n]);
    }
  }
}

// Of the state as it came into shared memory, which is kept in registers.
template <class P>
__device__ __forceinline__ void dots(MtpBlockShared<P>& shared, int warp, int lane,
                                     float (&sum)[2][P::kChains][4], StepRows (&rows)[P::kSteps]) {
  using Transfer = BlockTransfer<P>;
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
    if constexpr (P::kSame) {
      const auto packed = Transfer::read_packed(shared, warp, lane, j);
      add_dots<P>(shared, packed, j, lane, sum);
      rows[j] = packed.unpack();
    } else {
      rows[j] = Transfer::read(shared, warp, lane, j);
      add_dots<P, sizeof(typename P::State) == 4>(shared, rows[j], j, lane, sum);
    }
  }
}

// y and o from the dots and v, which come by token and are wanted by row. v: rows 4 t + 0..3 of
// token g.
template <class P>
__device__ __forceinline__ void solve(MtpBlockShared<P>& shared, const BlockDots& dots,
                                      const float (&v)[4], int warp, int lane, BlockSums& sums) {
  const int g = lane >> 2, t = lane & 3;
  const MtpCoefficients& c = shared.coefficients;
  float* b = shared.b[warp].numbers;
  float* queries = shared.queries[warp].numbers;
  const MtpCoefficients::Token token = c.token[g];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    b[MtpTurn::place(4 * t + i, g)] = token.value * v[i] - token.key * dots.k[i];
    queries[MtpTurn::place(4 * t + i, g)] = token.query * dots.q[i];
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 pair =
        *reinterpret_cast<const float2*>(&queries[MtpTurn::place(2 * g + n, 2 * t)]);
    sums.o[n][0] = pair.x, sums.o[n][1] = pair.y;
    sums.y[n][0] = sums.y[n][1] = 0;
  }
  const auto part = [](const float4& x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
  };
#pragma unroll
  for (int first = 0; first < P::kTokens; first += 4) {
    float4 rows[2], solved[2], output[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      rows[n] = *reinterpret_cast<const float4*>(&b[MtpTurn::place(2 * g + n, first)]);
      solved[n] = *reinterpret_cast<const float4*>(&c.solved[2 * t + n][first]);
      output[n] = *reinterpret_cast<const float4*>(&c.output[2 * t + n][first]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          sums.y[n][e] += part(solved[e], j) * part(rows[n], j);
          sums.o[n][e] += part(output[e], j) * part(rows[n], j);
        }
      }
    }
  }
}

// What the tokens add to the rows, as operands.
struct BlockUpdate {
  Tf32Pair y[2][2];
  float decay;

  __device__ __forceinline__ BlockUpdate(const MtpCoefficients& c, const BlockSums& sums, int lane)
      : decay(c.decay) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float keep = c.token[2 * (lane & 3) + e].keep;
#pragma unroll
      for (int n = 0; n < 2; ++n) y[n][e] = split(keep * sums.y[n][e]);
    }
  }

  template <class P>
  __device__ __forceinline__ void apply(const MtpBlockShared<P>& shared, int j, int lane,
                                        StepRows& rows) const {
    const uint4 keys = shared.turned[j][lane];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      std::uint32_t b0, b1;
      widen<typename P::Io>(word_of(keys, m), b0, b1);
      float d[4] = {};
      arch::mma_16x8x8_tf32(d, y[0][0].low, y[1][0].low, y[0][1].low, y[1][1].low, b0, b1);
      arch::mma_16x8x8_tf32(d, y[0][0].high, y[1][0].high, y[0][1].high, y[1][1].high, b0, b1);
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.s[m][i] = fmaf(decay, rows.s[m][i], d[i]);
    }
  }
};

// The fused gated norm over the V values of a head, which are a cluster of CTAs.
template <class P>
__device__ __forceinline__ void normalise(const MtpBlockArguments& a, MtpBlockShared<P>& shared,
                                          std::uint32_t row, std::uint32_t first, int tokens,
                                          int head, int value, int warp, int lane,
                                          BlockSums& sums) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const int t = lane & 3;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float square = sums.o[0][e] * sums.o[0][e] + sums.o[1][e] * sums.o[1][e];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      square += __shfl_xor_sync(device::kFullWarp, square, mask);
    }
    if (lane < 4) shared.squares[warp][2 * t + e] = square;
  }
  cluster.sync();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = 2 * t + e;
    float total = 0;
    for (unsigned cta = 0; cta < cluster.num_blocks(); ++cta) {
      const float* squares = cluster.map_shared_rank(&shared.squares[0][token], cta);
#pragma unroll
      for (int w = 0; w < P::kWarps; ++w) total += squares[w * P::kTokens];
    }
    const float factor =
        rsqrtf(total / static_cast<float>(gridDim.x * P::kRows) + static_cast<float>(a.norm.eps));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (token >= tokens) continue;
      const float z = device::load_number(a.norm.z.data, a.norm.z.dtype,
                                          a.norm.z.offset(row, first + token, head, value + n));
      const float weight = device::load_number(a.norm.weight.data, a.norm.weight.dtype,
                                               (value + n) * a.norm.weight.stride);
      sums.o[n][e] *=
          factor * weight *
          (a.norm.gate == norm::Activation::kSilu ? device::silu(z) : device::sigmoid(z));
    }
  }
  cluster.sync();  // the sums may be overwritten, and their CTA may leave
}

template <class Io>
__device__ __forceinline__ GateBits load_usual_gates_if(bool condition, const GateArguments& a,
                                                        std::int64_t gate, std::int64_t beta,
                                                        std::uint32_t head) {
  const std::int64_t dt_bias = head * static_cast<std::int64_t>(a.dt_bias_stride);
  const bool wide = a.dt_bias_dtype == DType::kFloat32;
  GateBits bits;
  bits.gate = load_half_if(condition, static_cast<const Io*>(a.gate) + gate);
  bits.beta = load_half_if(condition, static_cast<const Io*>(a.beta) + beta);
  bits.A_log = load_word_if(condition, static_cast<const float*>(a.A_log) +
                                           head * static_cast<std::int64_t>(a.A_log_stride));
  bits.dt_bias = load_word_if(condition && wide, static_cast<const float*>(a.dt_bias) + dt_bias) |
                 load_half_if(condition && !wide, static_cast<const Io*>(a.dt_bias) + dt_bias);
  return bits;
}

// A lane's part of a 16-bit state between the blocks of a row, not rounded.
template <class P>
__device__ __forceinline__ void carry(MtpBlockShared<P>& shared, int warp, int lane, int j,
                                      const StepRows& rows) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    shared.carried[(warp * P::kSteps + j) * 4 + m][lane] =
        make_float4(rows.s[m][0], rows.s[m][1], rows.s[m][2], rows.s[m][3]);
  }
}

template <class P>
__device__ __forceinline__ StepRows carried(const MtpBlockShared<P>& shared, int warp, int lane,
                                            int j) {
  StepRows rows;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float4 quad = shared.carried[(warp * P::kSteps + j) * 4 + m][lane];
    rows.s[m][0] = quad.x, rows.s[m][1] = quad.y, rows.s[m][2] = quad.z, rows.s[m][3] = quad.w;
  }
  return rows;
}

// What a block needs besides the state, as it lies in memory.
template <class P>
struct BlockTokens {
  std::uint32_t first, tokens;  // tokens first .. first + tokens of the batch
  KeyFragments<P> keys;
  std::uint32_t v[2];  // rows 4 t + 0..3 of token g
  GateBits gates;      // of token lane % kTokens, in warp 0

  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t head, int warp_value, int warp, int lane) {
    using Io = typename P::Io;
    keys.load(a, row, first, tokens, static_cast<std::uint32_t>(a.group(static_cast<int>(head))),
              warp, lane);
    const std::uint32_t token = lane >> 2;
    const Io* from = static_cast<const Io*>(a.v) + at(a.v_stride, row, first + token, head) +
                     warp_value + 4 * (lane & 3);
    v[0] = load_word_if(token < tokens, from);
    v[1] = load_word_if(token < tokens, from + 2);
  }
  __device__ __forceinline__ void load_gates(const MtpBlockArguments& a, std::uint32_t row,
                                             std::uint32_t head, int warp, int lane) {
    using Io = typename P::Io;
    const std::uint32_t own = lane % P::kTokens;
    const std::int64_t gate = at(a.gate_stride, row, first + own, head);
    const std::int64_t beta = at(a.beta_stride, row, first + own, head);
    const bool needed = warp == 0 && own < tokens;
    if constexpr (P::kOptions == Options::kUsual) {
      gates = load_usual_gates_if<Io>(needed, a.gates, gate, beta, head);
    } else if (needed) {
      gates = gdn::load_gates<P::kOptions, Io>(a.gates, gate, beta, head);
    }
  }
};

// q, k [.., H, 128]; v, out [.., HV, V]; state [slots, HV, V, 128] or [slots, HV, 128, V];
// grid (V / kRows, HV, B), as clusters (V / kRows) with the fused norm
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas)
    mtp_block(const __grid_constant__ MtpBlockArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  using Transfer = BlockTransfer<P>;
  constexpr bool kOneBlock = P::kOptions == Options::kUsual;
  __shared__ MtpBlockShared<P> shared;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  BlockSpan span;
  find_tokens<P::kOptions>(a, row, span);
  const std::uint32_t length = span.length, commit = span.commit;
  bool kept = false;
  // The block that starts with the row's token `start`. What is kept lies in the last block, or a
  // block is cut there.
  const auto tokens_from = [&](std::uint32_t start) {
    const bool cut =
        !kept && start + P::kTokens < length && start <= commit && commit < start + P::kTokens;
    return cut ? commit - start : min(std::uint32_t{P::kTokens}, length - start);
  };
  const std::int64_t place =
      head * static_cast<std::int64_t>(a.head_stride) +
      (P::kLayout == StateLayout::kVK ? warp_value * static_cast<std::int64_t>(a.line_stride)
                                      : warp_value);
  // The keys first: what is made of them must be ready when the state comes, which fills the
  // memory's queues.
  const std::uint32_t slot = ask_slot<P::kOptions>(a, row);
  BlockTokens<P> block;
  block.first = span.begin;
  block.tokens = kOneBlock ? length : tokens_from(0);
  block.load(a, row, head, warp_value, warp, lane);
  if constexpr (kOneBlock) block.load_gates(a, row, head, warp, lane);
  __syncwarp();                                              // ptxas moves no load across
  if (!find_slots<P::kOptions>(a, row, slot, span)) return;  // padding: the whole head leaves
  Transfer::start(shared, static_cast<const State*>(a.state) + span.read * a.slot_stride + place,
                  a.line_stride, warp, lane);
  if constexpr (!kOneBlock) block.load_gates(a, row, head, warp, lane);

  StepRows rows[P::kSteps];  // of a row of one block
  bool fresh = true;
  const auto held = [&](int j) {
    return P::kCarries && !fresh ? carried<P>(shared, warp, lane, j)
                                 : Transfer::read(shared, warp, lane, j);
  };
  for (std::uint32_t start = 0;;) {
    // Offsets and places are computed again, not kept in registers over the blocks.
    const int value = warp_value + 2 * (lane >> 2), t = lane & 3;
    const std::uint32_t this_row = kOneBlock ? row : arch::opaque(static_cast<int>(row));
    const std::uint32_t this_head = kOneBlock ? head : arch::opaque(static_cast<int>(head));
    const std::uint32_t tokens = block.tokens, end = start + tokens;
    const bool last = kOneBlock || end == length;
    const bool reaches = kOneBlock || (!kept && commit <= end);
    const std::uint32_t applied = reaches ? commit - start : tokens;
    if (warp == 0) {
      float alpha = 1.0f, beta = 0.0f;
      if (lane % P::kTokens < tokens) {
        alpha = alpha_of<P::kOptions, Io>(a.gates, block.gates);
        beta = beta_of<P::kOptions, Io>(a.gates, block.gates);
      }
      make_coefficients<P>(a, block.keys, alpha, beta, static_cast<int>(tokens),
                           static_cast<int>(applied), lane, shared.coefficients);
    } else {
      block.keys.share(shared, warp, lane);
    }
    __syncthreads();
    if (kOneBlock || fresh) Transfer::wait();
    float sum[2][P::kChains][4] = {};
    if constexpr (kOneBlock) {
      dots<P>(shared, warp, lane, sum, rows);
    } else {
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) add_dots<P, true>(shared, held(j), j, lane, sum);
    }
    const BlockDots found(sum);
    float v[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      device::Pack<Io, 2> pack;
      pack.words[0] = block.v[i];
      float pair[2];
      pack.unpack(pair);
      v[2 * i] = pair[0], v[2 * i + 1] = pair[1];
    }
    BlockSums sums;
    solve<P>(shared, found, v, warp, lane, sums);
    if (P::kOptions == Options::kAny && a.norm.present()) {
      normalise<P>(a, shared, this_row, block.first, static_cast<int>(tokens),
                   static_cast<int>(this_head), value, warp, lane, sums);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t token = 2 * t + e;
      if (token < tokens) {
        device::Pack<Io, 2> pack;
        const float pair[2] = {sums.o[0][e], sums.o[1][e]};
        pack.pack(pair);
        pack.store(static_cast<Io*>(a.out) +
                   at(a.out_stride, this_row, block.first + token, this_head) + value);
      }
    }
    const bool keeps = reaches && span.write >= 0;
    const BlockUpdate update(shared.coefficients, sums, lane);
    if constexpr (kOneBlock) {
      if (!keeps) return;
      if constexpr (P::kReadsTwice) {
#pragma unroll
        for (int j = 0; j < P::kSteps; ++j) rows[j] = Transfer::read(shared, warp, lane, j);
      }
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) update.apply<P>(shared, j, lane, rows[j]);
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) Transfer::write(shared, warp, lane, j, rows[j]);
    } else if (keeps || !last) {
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        StepRows step = held(j);
        update.apply<P>(shared, j, lane, step);
        if (keeps || !P::kCarries) Transfer::write(shared, warp, lane, j, step);
        if (P::kCarries) carry<P>(shared, warp, lane, j, step);
      }
      fresh = false;
    }
    if (keeps) {
      Transfer::finish(shared, static_cast<State*>(a.state) + span.write * a.slot_stride + place,
                       a.line_stride, warp, lane);
    }
    if (last) break;
    kept = kept || reaches;
    start = end;
    block.first += tokens;
    block.tokens = tokens_from(start);
    block.load(a, this_row, this_head, warp_value, warp, lane);
    block.load_gates(a, this_row, this_head, warp, lane);
    __syncthreads();  // the next block's keys overwrite this one's
  }
}

}  // namespace hyla::gdn
