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

// y and o of a lane: rows n of its pair, tokens 2 t + e.
struct BlockSums {
  float y[2][2], o[2][2];
};

// Products of the keys and queries of 8 tokens, which are the rows of the first operand, with a
// warp's 16 rows of the state: row n of the pairs are the columns of product n, which comes in
// several sums, so that one need not wait for the other.
template <class P>
struct BlockDots {
  static constexpr int kHigh = 2, kLow = P::kOptions == Options::kAny ? 1 : 2;
  static constexpr int kChains = kHigh + kLow;
  float sum[2][kChains][4] = {};

  // k.S (first = 0) or q.S (first = 2) of token g: rows 4 t + 0..3 in the order of the pairs.
  __device__ __forceinline__ float4 total(int first) const {
    const auto one = [&](int n, int i) {
      float x = sum[n][0][first + i];
#pragma unroll
      for (int chain = 1; chain < kChains; ++chain) x += sum[n][chain][first + i];
      return x;
    };
    return make_float4(one(0, 0), one(1, 0), one(0, 1), one(1, 1));
  }
};

// One step of the dots. Split: the state is not a tf32 number, so its low part has products of its
// own, of half as many steps where bfloat16 can hold it.
template <class P, bool Split>
__device__ __forceinline__ void add_dots(const BlockKeys<P>& keys, const StepRows& rows, int j,
                                         int lane, BlockDots<P>& dots) {
  using Io = typename P::Io;
  constexpr int kHigh = BlockDots<P>::kHigh, kLow = BlockDots<P>::kLow;
  constexpr bool kShortLow = Split && std::is_same_v<Io, __nv_bfloat16>;
  const uint4 k = key_words<P>(keys, 0, j, lane), q = key_words<P>(keys, 1, j, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint4 words;
      widen<Io>(word_of(k, 2 * half + i), words.x, words.z);
      widen<Io>(word_of(q, 2 * half + i), words.y, words.w);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* s = &rows.s[2 * half + i][2 * n];
        arch::mma_16x8x8_tf32(dots.sum[n][i % kHigh], words.x, words.y, words.z, words.w,
                              __float_as_uint(s[0]), __float_as_uint(s[1]));
        if constexpr (Split && !kShortLow) {
          arch::mma_16x8x8_tf32(dots.sum[n][kHigh + i % kLow], words.x, words.y, words.z, words.w,
                                split(s[0]).low, split(s[1]).low);
        }
      }
    }
    if constexpr (kShortLow) {
      const std::uint32_t a[] = {word_of(k, 2 * half), word_of(q, 2 * half),
                                 word_of(k, 2 * half + 1), word_of(q, 2 * half + 1)};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        arch::mma_16x8x16<Io>(dots.sum[n][kHigh + half % kLow], a, rows.packed_low<Io>(2 * half, n),
                              rows.packed_low<Io>(2 * half + 1, n));
      }
    }
  }
}

// The same for a state in the dtype of q and k, which the tensor cores take as it is.
template <class P>
__device__ __forceinline__ void add_dots(const BlockKeys<P>& keys,
                                         const PackedStep<typename P::State>& rows, int j, int lane,
                                         BlockDots<P>& dots) {
  const uint4 k = key_words<P>(keys, 0, j, lane), q = key_words<P>(keys, 1, j, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t a[] = {word_of(k, 2 * half), word_of(q, 2 * half), word_of(k, 2 * half + 1),
                               word_of(q, 2 * half + 1)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      arch::mma_16x8x16<typename P::Io>(dots.sum[n][2 * (j % 2) + half], a, rows.words[2 * half][n],
                                        rows.words[2 * half + 1][n]);
    }
  }
}

// d += x m^T, all in float32 up to the last bits; x: row n, tokens 2 t + e of this lane.
__device__ __forceinline__ void multiply(const float (&x)[2][2],
                                         const float (&m)[kMtpBlockTokens][kMtpBlockTokens],
                                         int lane, float (&d)[4]) {
  const float2 pair = *reinterpret_cast<const float2*>(&m[lane >> 2][2 * (lane & 3)]);
  const Tf32Pair b[2] = {split(pair.x), split(pair.y)};
  Tf32Pair a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = split(x[i % 2][i / 2]);
  float small[4] = {};
  arch::mma_16x8x8_tf32(small, a[0].low, a[1].low, a[2].low, a[3].low, b[0].low, b[1].low);
  arch::mma_16x8x8_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
  arch::mma_16x8x8_tf32(small, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
  arch::mma_16x8x8_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += small[i];
}

// y and o from the dots, which come by token and are wanted by row, and v (row n, token 2 t + e).
template <class P>
__device__ __forceinline__ void solve(MtpBlockShared<P>& shared, const BlockDots<P>& dots,
                                      const float (&v)[2][2], int warp, int lane, BlockSums& sums) {
  const int g = lane >> 2, t = lane & 3;
  MtpTurn& turn = shared.turn[warp];
  *reinterpret_cast<float4*>(&turn.k[g][4 * t]) = dots.total(0);
  *reinterpret_cast<float4*>(&turn.q[g][4 * t]) = dots.total(2);
  __syncwarp();
  const MtpCoefficients& c = shared.coefficients;
  float b[2][2], y[4] = {}, o[4];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const MtpCoefficients::Token token = c.token[2 * t + e];
    const float2 k = *reinterpret_cast<const float2*>(&turn.k[2 * t + e][2 * g]);
    const float2 q = *reinterpret_cast<const float2*>(&turn.q[2 * t + e][2 * g]);
    b[0][e] = token.value * v[0][e] - token.key * k.x;
    b[1][e] = token.value * v[1][e] - token.key * k.y;
    o[e] = token.query * q.x, o[2 + e] = token.query * q.y;
  }
  multiply(b, c.solved, lane, y);
  multiply(b, c.output, lane, o);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) sums.y[n][e] = y[2 * n + e], sums.o[n][e] = o[2 * n + e];
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
                                          int head, int value, bool owns, int warp, int lane,
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
    if (lane < 4) shared.squares[warp][2 * t + e] = owns ? square : 0.0f;
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
        rsqrtf(total / static_cast<float>(a.values) + static_cast<float>(a.norm.eps));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (!owns || token >= tokens) continue;
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
  bits.dt_bias =
      load_bits_if(condition, wide, static_cast<const char*>(a.dt_bias) + dt_bias * (wide ? 4 : 2));
  return bits;
}

// What a block needs besides keys and state, as it lies in memory.
template <class P>
struct BlockTokens {
  std::uint32_t first, tokens;  // tokens first .. first + tokens of the batch
  std::uint32_t v[2];           // both rows of the lane's pair, of tokens 2 t + e
  GateBits gates;               // of token lane % kTokens, in warp 0

  __device__ __forceinline__ void load_values(const MtpBlockArguments& a, std::uint32_t row,
                                              std::uint32_t head, int value, int lane) {
    using Io = typename P::Io;
    const std::uint32_t token = 2 * (lane & 3);
    const Io* from = static_cast<const Io*>(a.v) + at(a.v_stride, row, first + token, head) + value;
    const bool owns = owns_rows<P>(a, value);
    v[0] = load_word_if(owns && token < tokens, from);
    v[1] = load_word_if(owns && token + 1 < tokens, from + a.v_stride.token);
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
  __device__ __forceinline__ void values(float (&to)[2][2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      device::Pack<typename P::Io, 2> pack;
      pack.words[0] = v[e];
      float pair[2];
      pack.unpack(pair);
      to[0][e] = pair[0], to[1][e] = pair[1];
    }
  }
};

// q, k [.., H, 128]; v, out [.., HV, V]; state [slots, HV, V, 128] or [slots, HV, 128, V];
// grid (V / kRows, HV, B), rounded up, as clusters (V / kRows) with the fused norm
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas)
    mtp_block(const __grid_constant__ MtpBlockArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  using Transfer = BlockTransfer<P>;
  constexpr bool kOneBlock = P::kOptions == Options::kUsual;
  __shared__ MtpBlockShared<P> shared;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  const int value = warp_value + 2 * Transfer::pair_of(lane >> 2);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  Transfer transfer(shared, warp, lane);
  BlockSpan span;
  find_tokens<P::kOptions>(a, row, span);
  const std::uint32_t length = span.length;
  std::uint32_t commit = span.commit;
  bool kept = false;
  // The block that starts with the row's token `start`. What is kept lies in the last block, or a
  // block is cut there.
  const auto tokens_from = [&](std::uint32_t start) {
    const bool cut =
        !kept && start + P::kTokens < length && start <= commit && commit < start + P::kTokens;
    return cut ? commit - start : min(std::uint32_t{P::kTokens}, length - start);
  };
  // The CTA's first value in a slot.
  const auto place_of = [&](std::int64_t slot) {
    const std::uint32_t first_value = blockIdx.x * P::kRows;
    return static_cast<State*>(a.state) + slot * a.slot_stride +
           head * static_cast<std::int64_t>(a.head_stride) +
           (P::kLayout == StateLayout::kVK ? first_value * static_cast<std::int64_t>(a.line_stride)
                                           : first_value);
  };
  const bool owns = owns_rows<P>(a, warp_value);
  // Keys and values first: what is made of them must be ready when the state comes, which fills the
  // memory's queues. The gates are few.
  const std::uint32_t asked_read = ask<P::kOptions>(a.read_slots, row);
  const std::uint32_t asked_write = ask<P::kOptions>(a.write_slots, row);
  const std::uint32_t asked_commit = ask<P::kOptions>(a.commit_lengths, row);
  BlockTokens<P> block;
  block.first = span.begin;
  block.tokens = kOneBlock ? length : tokens_from(0);
  KeyFragments<P> own_keys;
  KeyChunks<P> first_keys;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kOneBlock) {
    own_keys.load(a, row, head, length, warp, lane);
  } else {
    first_keys.load(a, row, head, block.first, block.tokens, thread);
  }
  const bool indirect = a.read_slots.present();
  const auto start_if = [&](bool condition, std::int64_t from) {
    if (condition && !is_null(a, from)) transfer.start(a, place_of(from));
  };
  if constexpr (kOneBlock && !P::kBulk) block.load_gates(a, row, head, warp, lane);
  block.load_values(a, row, head, value, lane);
  __syncwarp();  // ptxas moves no load across
  if constexpr (P::kStateBeforeGates) start_if(!indirect, row);
  if constexpr (P::kBulk) block.load_gates(a, row, head, warp, lane);
  __syncwarp();
  const std::int64_t read = read_slot<P::kOptions>(a, row, asked_read);
  if (is_null(a, read)) return;  // padding: the whole head leaves
  start_if(!P::kStateBeforeGates || indirect, read);
  if constexpr (!kOneBlock) block.load_gates(a, row, head, warp, lane);
  if constexpr (kOneBlock) commit = commit_of(a, asked_commit);
  // Longer rows keep it where it takes no registers.
  const std::int64_t own_write = write_slot<P::kOptions>(a, row, asked_write, read);
  if constexpr (!kOneBlock) {
    if (thread == 0) shared.write = own_write;
    first_keys.share(thread, shared.keys[0]);
  }

  StepRows rows[P::kSteps];
  int buffer = 0;
  for (std::uint32_t start = 0;;) {
    const BlockKeys<P>& keys = shared.keys[kOneBlock ? 0 : buffer];
    const std::uint32_t tokens = block.tokens, end = start + tokens;
    const bool last = kOneBlock || end == length;
    const bool reaches = kOneBlock || (!kept && commit <= end);
    const std::uint32_t applied = reaches ? commit - start : tokens;
    const auto make = [&](auto words) {
      float alpha = 1.0f, beta = 0.0f;
      if (lane % P::kTokens < tokens) {
        alpha = alpha_of<P::kOptions, Io>(a.gates, block.gates);
        beta = beta_of<P::kOptions, Io>(a.gates, block.gates);
      }
      make_coefficients<P>(a, words, alpha, beta, static_cast<int>(tokens),
                           static_cast<int>(applied), lane, shared.coefficients);
    };
    if constexpr (kOneBlock) {
      if (warp == 0) {
        make([&](int which, int j) { return which == 0 ? own_keys.k[j] : own_keys.q[j]; });
      } else {
        own_keys.share(shared, warp, lane);
      }
      __syncthreads();
    } else {
      if (start != 0) arch::wait_copies<0>();
      __syncthreads();
      if (warp == 0) {
        make([&](int which, int j) { return key_words<P>(keys, which, j, lane); });
      } else if (warp == 1) {
#pragma unroll
        for (int j = 0; j < P::kSteps; ++j) {
          shared.turned[j][lane] = turned(key_words<P>(keys, 0, j, lane));
        }
      }
    }
    if (kOneBlock || start == 0) transfer.wait();
    BlockDots<P> dots;
    if constexpr (kOneBlock && P::kSame) {
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        add_dots<P>(keys, transfer.read_packed(j), j, lane, dots);
      }
    } else {
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        if (kOneBlock || start == 0) rows[j] = transfer.read(j);
        add_dots<P, !kOneBlock || sizeof(State) == 4>(keys, rows[j], j, lane, dots);
      }
    }
    float v[2][2];
    block.values(v);
    const std::uint32_t first = block.first;
    if constexpr (!kOneBlock) {
      if (!last) {
        kept = kept || reaches;
        buffer ^= 1;
        block.first += tokens;
        block.tokens = tokens_from(end);
        start_keys<P>(a, row, head, block.first, block.tokens, thread, shared.keys[buffer]);
        block.load_gates(a, row, head, warp, lane);
        block.load_values(a, row, head, value, lane);
      }
      __syncthreads();
    }
    BlockSums sums;
    solve(shared, dots, v, warp, lane, sums);
    if (P::kOptions == Options::kAny && a.norm.present()) {
      normalise<P>(a, shared, row, first, static_cast<int>(tokens), static_cast<int>(head), value,
                   owns, warp, lane, sums);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t token = 2 * (lane & 3) + e;
      if (owns && token < tokens) {
        device::Pack<Io, 2> pack;
        const float pair[2] = {sums.o[0][e], sums.o[1][e]};
        pack.pack(pair);
        pack.store(static_cast<Io*>(a.out) + at(a.out_stride, row, first + token, head) + value);
      }
    }
    const std::int64_t write = kOneBlock ? own_write : shared.write;
    const bool keeps = reaches && write >= 0;
    if (kOneBlock && !keeps) return;
    State* const to = place_of(write);
    const BlockUpdate update(shared.coefficients, sums, lane);
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
      if constexpr (P::kReadsTwice) rows[j] = transfer.read(j);
      update.apply<P>(shared, j, lane, rows[j]);
      if (keeps) transfer.write(a, j, rows[j], to);
    }
    if (keeps) transfer.finish(a, to);
    if (last) break;
    start = end;
  }
}

}  // namespace hyla::gdn
