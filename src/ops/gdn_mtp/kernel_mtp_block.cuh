// Several tokens a row through the tensor cores, a block of up to 8 tokens at a time: the state is
// read once, both dots of all tokens with it are matrix products, what the tokens do to each other
// is a small triangular system, and the update is a matrix product again.
//
// q and k in 16 bits are exact tf32 operands; a float32 state is split into two of them, so nothing
// is lost but the last bits of float32. README.md has the math and the drawing.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>
#include <utility>

#include "arch/grid_dependency.cuh"
#include "arch/mma.cuh"
#include "arch/mma_short.cuh"
#include "device/activation.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_gates.cuh"
#include "ops/gdn_mtp/block_state.cuh"

namespace hyla::gdn {

// y and o of a lane and what both are made of: rows n of its pair, tokens 2 t + e.
struct BlockSums {
  float b[2][2], y[2][2], o[2][2];
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

// y, and what o takes from the state, from the dots, which come by token and are wanted by row, and
// v (row n, token 2 t + e).
template <class P>
__device__ __forceinline__ void solve(MtpBlockShared<P>& shared, const BlockDots<P>& dots,
                                      const float (&v)[2][2], int warp, int lane, BlockSums& sums) {
  const int g = lane >> 2, t = lane & 3;
  MtpTurn& turn = shared.turn[warp];
  *reinterpret_cast<float4*>(&turn.k[g][4 * t]) = dots.total(0);
  *reinterpret_cast<float4*>(&turn.q[g][4 * t]) = dots.total(2);
  __syncwarp();
  const MtpCoefficients& c = shared.coefficients;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const MtpCoefficients::Token token = c.token[2 * t + e];
    const float2 k = *reinterpret_cast<const float2*>(&turn.k[2 * t + e][2 * g]);
    const float2 q = *reinterpret_cast<const float2*>(&turn.q[2 * t + e][2 * g]);
    sums.b[0][e] = token.value * v[0][e] - token.key * k.x;
    sums.b[1][e] = token.value * v[1][e] - token.key * k.y;
    sums.o[0][e] = token.query * q.x, sums.o[1][e] = token.query * q.y;
  }
  float y[4] = {};
  multiply(sums.b, c.solved, lane, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.y[i / 2][i % 2] = y[i];
}

// What o takes from the tokens of the block.
__device__ __forceinline__ void add_tokens(const MtpCoefficients& c, int lane, BlockSums& sums) {
  float o[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = sums.o[i / 2][i % 2];
  multiply(sums.b, c.output, lane, o);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.o[i / 2][i % 2] = o[i];
}

// y of the tokens that are kept, in two tf32 numbers.
template <class Io>
struct KeptSums {
  Tf32Pair y[2][2];

  __device__ __forceinline__ explicit KeptSums(const float (&kept)[2][2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i / 2][i % 2] = split(kept[i / 2][i % 2]);
  }
  // d += y k for the 8 columns of one word of keys.
  __device__ __forceinline__ void multiply(std::uint32_t keys, float (&d)[4]) const {
    std::uint32_t b0, b1;
    widen<Io>(keys, b0, b1);
    arch::mma_16x8x8_tf32(d, y[0][0].low, y[1][0].low, y[0][1].low, y[1][1].low, b0, b1);
    arch::mma_16x8x8_tf32(d, y[0][0].high, y[1][0].high, y[0][1].high, y[1][1].high, b0, b1);
  }
};

// In three bfloat16 numbers, which hold all of it, beside keys as they are: two of them are the two
// halves of one product's 16 steps, the third is half a product.
template <>
struct KeptSums<__nv_bfloat16> {
  std::uint32_t high[4], low[2];

  __device__ __forceinline__ explicit KeptSums(const float (&kept)[2][2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float rest[2] = {kept[n][0], kept[n][1]};
      high[n] = take(rest);
      high[2 + n] = take(rest);
      low[n] = take(rest);
    }
  }
  __device__ __forceinline__ void multiply(std::uint32_t keys, float (&d)[4]) const {
    arch::mma_16x8x8_bf16(d, low[0], low[1], keys);
    arch::mma_16x8x16<__nv_bfloat16>(d, high, keys, keys);
  }

 private:
  // The first 8 bits of two numbers, which keep the others.
  static __device__ __forceinline__ std::uint32_t take(float (&x)[2]) {
    const std::uint32_t words[2] = {__float_as_uint(x[0]), __float_as_uint(x[1])};
#pragma unroll
    for (int e = 0; e < 2; ++e) x[e] -= __uint_as_float(words[e] & 0xffff0000u);
    return __byte_perm(words[0], words[1], 0x7632);
  }
};

// What the tokens add to the rows.
template <class Io>
struct BlockUpdate {
  KeptSums<Io> y;
  float decay;

  __device__ __forceinline__ BlockUpdate(const MtpCoefficients& c, const BlockSums& sums, int lane)
      : y(kept(c, sums, lane).y), decay(c.decay) {}

  template <class P>
  __device__ __forceinline__ void apply(const MtpBlockShared<P>& shared, int j, int lane,
                                        StepRows& rows) const {
    const uint4 keys = shared.turned[j][lane];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float d[4] = {};
      y.multiply(word_of(keys, m), d);
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.s[m][i] = fmaf(decay, rows.s[m][i], d[i]);
    }
  }

 private:
  static __device__ __forceinline__ BlockSums kept(const MtpCoefficients& c, const BlockSums& sums,
                                                   int lane) {
    BlockSums result = sums;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float keep = c.token[2 * (lane & 3) + e].keep;
      result.y[0][e] *= keep, result.y[1][e] *= keep;
    }
    return result;
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

// What a block needs besides keys and state, as it lies in memory.
template <class P>
struct BlockTokens {
  std::uint32_t first, tokens;                    // tokens first .. first + tokens of the batch
  std::uint32_t v[2];                             // both rows of the lane's pair, of tokens 2 t + e
  AskedGates<P::kOptions, typename P::Io> gates;  // of token lane % kTokens, in warp 0

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
    const std::uint32_t own = lane % P::kTokens;
    const std::int64_t gate = at(a.gate_stride, row, first + own, head);
    const std::int64_t beta = at(a.beta_stride, row, first + own, head);
    const bool needed = warp == 0 && own < tokens;
    gates.ask_if(needed, a.gates, gate, beta, head);
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
  AskedRow asked_row;
  if constexpr (!kOneBlock) asked_row.ask(a, row);
  BlockSpan span;
  find_tokens<P::kOptions>(a, row, asked_row, span);
  // Longer rows: their slot has come with their tokens' place.
  std::int64_t read = row;
  if constexpr (!kOneBlock) {
    read = read_slot(a, row, asked_row.slot);
    if (is_null(a, read)) return;
  }
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
  // Keys, gates and values first: what is made of them must be ready when the state comes, which
  // fills the memory's queues. Slots behind them: the state waits for its slot, they would too.
  BlockTokens<P> block;
  block.first = span.begin;
  block.tokens = kOneBlock ? length : tokens_from(0);
  KeyFragments<P> own_keys;
  KeyChunks<P> first_keys;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (P::kGatesFirst) {
    block.load_gates(a, row, head, warp, lane);
    __syncwarp();  // ptxas moves no load across
  }
  if constexpr (kOneBlock) {
    own_keys.load(a, row, head, length, warp, lane);
  } else {
    first_keys.load(a, row, head, block.first, block.tokens, thread);
  }
  if constexpr (!P::kGatesFirst) block.load_gates(a, row, head, warp, lane);
  block.load_values(a, row, head, value, lane);
  __syncwarp();
  const std::uint32_t asked_read = ask<P::kOptions>(a.read_slots, row);
  const std::uint32_t asked_write = ask<P::kOptions>(a.write_slots, row);
  const std::uint32_t asked_commit = ask<P::kOptions>(a.commit_lengths, row);
  if constexpr (kOneBlock) {
    if (a.read_slots.present()) read = static_cast<std::int32_t>(asked_read);
    if (is_null(a, read)) return;  // padding: the whole head leaves
  }
  transfer.start(a, place_of(read));
  // Longer rows keep it where it takes no registers.
  if constexpr (!kOneBlock) {
    if (thread == 0) shared.write = write_slot<P::kOptions>(a, row, asked_write, read);
    first_keys.share(thread, shared.keys[0]);
  }

  StepRows rows[P::kSteps];
  int buffer = 0;
  for (std::uint32_t start = 0;;) {
    const BlockKeys<P>& keys = shared.keys[kOneBlock ? 0 : buffer];
    const std::uint32_t tokens = block.tokens, end = start + tokens;
    const bool last = kOneBlock || end == length;
    const bool reaches = kOneBlock || (!kept && commit <= end);
    const auto make = [&](auto words) {
      // What was asked for is read where it is needed: the compiler moves no wait across a barrier,
      // and no state then waits for it.
      const std::uint32_t applied = kOneBlock ? commit_of(a, asked_commit)
                                    : reaches ? commit - start
                                              : tokens;
      float alpha = 1.0f, beta = 0.0f;
      if (lane % P::kTokens < tokens) {
        const GateBits bits = block.gates.bits();
        alpha = alpha_of<P::kOptions, Io>(a.gates, bits);
        beta = beta_of<P::kOptions, Io>(a.gates, bits);
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
    BlockDots<P> dots;
    const auto one_step = [&](auto step) {
      constexpr int j = decltype(step)::value;
      if (kOneBlock || start == 0) transfer.template wait<j>(a);
      if constexpr (kOneBlock && P::kSame) {
        add_dots<P>(keys, transfer.read_packed(j), j, lane, dots);
      } else {
        if (kOneBlock || start == 0) rows[j] = transfer.read(j);
        add_dots<P, !kOneBlock || sizeof(State) == 4>(keys, rows[j], j, lane, dots);
      }
    };
    [&]<int... j>(std::integer_sequence<int, j...>) {
      (one_step(std::integral_constant<int, j>{}), ...);
    }
    (std::make_integer_sequence<int, P::kSteps>{});
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
    const auto put_out = [&] {
      add_tokens(shared.coefficients, lane, sums);
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
    };
    const std::int64_t write =
        kOneBlock ? write_slot<P::kOptions>(a, row, asked_write, read) : shared.write;
    const bool keeps = reaches && write >= 0;
    // The state first, which is the most to be stored; longer rows lack the registers for it.
    if (!kOneBlock || !keeps) put_out();
    if (kOneBlock && !keeps) return;
    State* const to = place_of(write);
    const BlockUpdate<Io> update(shared.coefficients, sums, lane);
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
      if constexpr (P::kReadsTwice) rows[j] = transfer.read(j);
      update.template apply<P>(shared, j, lane, rows[j]);
      if (keeps) transfer.write(a, j, rows[j], to);
    }
    if (keeps) transfer.finish(a, to);
    if constexpr (kOneBlock) put_out();
    if (last) break;
    start = end;
  }
}

}  // namespace hyla::gdn
