// Several tokens a row through the tensor cores, a block of 4 or 8 tokens at a time: the state is read
// once, both dots of all tokens with it are matrix products, what the tokens do to each other is a
// small triangular system, and the update is a matrix product again.
//
// q and k in 16 bits are exact tf32 operands; a float32 state is split into two of them, so nothing is
// lost but the last bits of float32. README.md has the math and the drawing.
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

// The two 16-bit numbers of a word as float32, which are tf32 too.
template <class Io>
__device__ __forceinline__ void widen(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (std::is_same_v<Io, __nv_bfloat16>) {
    low = word << 16, high = word & 0xffff0000u;
  } else {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    low = __float_as_uint(pair.x), high = __float_as_uint(pair.y);
  }
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// y and o of a lane: rows 2 g + n, tokens kPerLane t + e.
template <class P>
struct BlockSums {
  float y[2][P::kPerLane], o[2][P::kPerLane];
};

// y = k.S, o = q.S of 16 rows. Split: the state is not a tf32 number, so its low part has products of
// its own.
template <class P, bool Split>
__device__ __forceinline__ void dots(const MtpBlockShared<P>& shared, const BlockRows<P>& rows,
                                     int lane, BlockSums<P>& sums) {
  constexpr int kChains = 4 / P::kParts;  // four products are always under way
  float sum[P::kParts][kChains][4] = {};
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
    uint4 keys[P::kParts];
#pragma unroll
    for (int part = 0; part < P::kParts; ++part) keys[part] = shared.keys[j][part][lane];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float(&s)[4] = rows.s[j][m];
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Tf32Pair x = split(s[i]);
        high[i] = x.high, low[i] = x.low;
      }
#pragma unroll
      for (int part = 0; part < P::kParts; ++part) {
        std::uint32_t b0, b1;
        widen<typename P::Io>(word_of(keys[part], m), b0, b1);
        arch::mma_16x8x8_tf32(sum[part][m % kChains], high[0], high[1], high[2], high[3], b0, b1);
        if constexpr (Split) {
          arch::mma_16x8x8_tf32(sum[part][(m + kChains / 2) % kChains], low[0], low[1], low[2],
                                low[3], b0, b1);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      const auto total = [&](int part, int i) {
        float x = 0;
#pragma unroll
        for (int chain = 0; chain < kChains; ++chain) x += sum[part][chain][2 * n + i];
        return x;
      };
      sums.y[n][e] = total(0, e);
      sums.o[n][e] = P::kParts == 2 ? total(P::kParts - 1, e) : total(0, 1);
    }
  }
}

// The same for a state in the dtype of q and k, which the tensor cores take as it is.
template <class P>
__device__ __forceinline__ void dots(const MtpBlockShared<P>& shared, const PackedRows<P>& rows,
                                     int lane, BlockSums<P>& sums) {
  float sum[P::kParts][2][4] = {};
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
    for (int part = 0; part < P::kParts; ++part) {
      const uint4 keys = shared.keys[j][part][lane];
      const auto(&w)[4][2] = rows.words[j];
      const std::uint32_t first[] = {w[0][0], w[0][1], w[1][0], w[1][1]};
      const std::uint32_t second[] = {w[2][0], w[2][1], w[3][0], w[3][1]};
      arch::mma_16x8x16<typename P::Io>(sum[part][0], first, keys.x, keys.y);
      arch::mma_16x8x16<typename P::Io>(sum[part][1], second, keys.z, keys.w);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      constexpr int kQuery = P::kParts - 1;
      sums.y[n][e] = sum[0][0][2 * n + e] + sum[0][1][2 * n + e];
      const int i = 2 * n + (P::kParts == 2 ? e : 1);
      sums.o[n][e] = sum[kQuery][0][i] + sum[kQuery][1][i];
    }
  }
}

// The triangular system, forward; a quad holds all tokens of its two rows.
template <class P>
__device__ __forceinline__ void solve(const MtpCoefficients<P::kTokens>& c,
                                      const float (&v)[2][P::kPerLane], int t, BlockSums<P>& sums,
                                      float (&keep)[P::kPerLane]) {
#pragma unroll
  for (int e = 0; e < P::kPerLane; ++e) {
    const auto token = c.token[P::kPerLane * t + e];
    keep[e] = token.keep;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      sums.y[n][e] = token.value * v[n][e] - token.key * sums.y[n][e];
      sums.o[n][e] *= token.query;
    }
  }
#pragma unroll
  for (int first = 0; first < P::kTokens; first += 4) {
    float4 mix[P::kPerLane], read[P::kPerLane];
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      const int i = P::kPerLane * t + e;
      mix[e] = *reinterpret_cast<const float4*>(&c.mix[i][first]);
      read[e] = *reinterpret_cast<const float4*>(&c.read[i][first]);
    }
#pragma unroll
    for (int j = first; j < first + 4; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float y =
            __shfl_sync(device::kFullWarp, sums.y[n][j % P::kPerLane], j / P::kPerLane, 4);
#pragma unroll
        for (int e = 0; e < P::kPerLane; ++e) {
          sums.y[n][e] -= reinterpret_cast<const float*>(&mix[e])[j - first] * y;
          sums.o[n][e] += reinterpret_cast<const float*>(&read[e])[j - first] * y;
        }
      }
    }
  }
}

template <class P>
__device__ __forceinline__ void update(const MtpBlockShared<P>& shared, const BlockSums<P>& sums,
                                       const float (&keep)[P::kPerLane], int lane,
                                       BlockRows<P>& rows) {
  Tf32Pair y[2][P::kPerLane];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) y[n][e] = split(keep[e] * sums.y[n][e]);
  }
  const float decay = shared.coefficients.decay;
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
    const uint4 keys = shared.turned[j][lane];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      std::uint32_t b0, b1;
      widen<typename P::Io>(word_of(keys, m), b0, b1);
      float d[4] = {};
      if constexpr (P::kTokens == 8) {
        arch::mma_16x8x8_tf32(d, y[0][0].low, y[1][0].low, y[0][1].low, y[1][1].low, b0, b1);
        arch::mma_16x8x8_tf32(d, y[0][0].high, y[1][0].high, y[0][1].high, y[1][1].high, b0, b1);
      } else {
        arch::mma_16x8x8_tf32(d, y[0][0].high, y[1][0].high, y[0][0].low, y[1][0].low, b0, b0);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // of d: row 2 g + i / 2, column 2 m + i % 2
        float& s = rows.s[j][m][2 * (i % 2) + i / 2];
        s = fmaf(decay, s, d[i]);
      }
    }
  }
}

// The fused gated norm over the V values of a head, which are a cluster of CTAs.
template <class P>
__device__ __forceinline__ void normalise(const MtpBlockArguments& a, MtpBlockShared<P>& shared,
                                          std::uint32_t row, std::uint32_t first, int tokens,
                                          int head, int value, int warp, int lane,
                                          BlockSums<P>& sums) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const int t = lane & 3;
#pragma unroll
  for (int e = 0; e < P::kPerLane; ++e) {
    float square = sums.o[0][e] * sums.o[0][e] + sums.o[1][e] * sums.o[1][e];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      square += __shfl_xor_sync(device::kFullWarp, square, mask);
    }
    if (lane < 4) shared.squares[warp][P::kPerLane * t + e] = square;
  }
  cluster.sync();
#pragma unroll
  for (int e = 0; e < P::kPerLane; ++e) {
    const int token = P::kPerLane * t + e;
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

// What a block needs besides the state, as it lies in memory.
template <class P>
struct BlockTokens {
  std::uint32_t first, tokens;  // tokens first .. first + tokens of the batch
  KeyFragments<P> keys;
  device::Pack<typename P::Io, 2> v[P::kPerLane];
  GateBits gates;  // of token lane % kTokens, in warp 0

  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t head, int value, int warp, int lane) {
    using Io = typename P::Io;
    if (P::kWarps == 2 || warp < 2) keys.load(a, row, first, tokens, head / a.group, lane);
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      const std::uint32_t token = P::kPerLane * (lane & 3) + e;
      v[e] = {};
      if (token < tokens) {
        v[e].load(static_cast<const Io*>(a.v) + at(a.v_stride, row, first + token, head) + value);
      }
    }
    const std::uint32_t own = lane % P::kTokens;
    if (warp == 0 && own < tokens) {
      gates = load_gates<P::kOptions, Io>(a, at(a.gate_stride, row, first + own, head),
                                          at(a.beta_stride, row, first + own, head), head);
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
  const int t = lane & 3;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  const int value = warp_value + 2 * (lane >> 2);
  arch::wait_for_previous_grid();
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
  BlockTokens<P> block;
  block.first = span.begin;
  block.tokens = kOneBlock ? length : tokens_from(0);
  block.load(a, row, head, value, warp, lane);
  if (!find_slots<P::kOptions>(a, row, span)) return;  // padding: the whole head leaves
  const std::int64_t place =
      head * static_cast<std::int64_t>(a.head_stride) +
      (P::kLayout == StateLayout::kVK ? warp_value * static_cast<std::int64_t>(a.line_stride)
                                      : warp_value);
  Transfer::start(shared, static_cast<const State*>(a.state) + span.read * a.slot_stride + place,
                  a.line_stride, warp, lane);

  BlockRows<P> rows;
  bool fresh = true;
  for (std::uint32_t start = 0;;) {
    const std::uint32_t tokens = block.tokens, end = start + tokens;
    const bool last = kOneBlock || end == length;
    const bool reaches = kOneBlock || (!kept && commit <= end);
    const std::uint32_t applied = reaches ? commit - start : tokens;
    if (warp == 0) {
      float alpha = 1.0f, beta = 0.0f;
      if (lane % P::kTokens < tokens) {
        alpha = alpha_of<P::kOptions, Io>(a, block.gates);
        beta = beta_of<P::kOptions, Io>(a, block.gates);
      }
      make_coefficients<P>(a, block.keys, alpha, beta, static_cast<int>(tokens),
                           static_cast<int>(applied), lane, shared.coefficients);
    } else if (P::kWarps == 2 || warp == 1) {
      block.keys.share(shared, lane);
    }
    if (kOneBlock || fresh) Transfer::wait();
    __syncthreads();
    BlockSums<P> sums;
    if constexpr (std::is_same_v<State, Io>) {
      if (kOneBlock || fresh) {
        PackedRows<P> packed;
        Transfer::read(shared, warp, lane, packed);
        dots<P>(shared, packed, lane, sums);
        packed.unpack(rows);
      } else {
        dots<P, true>(shared, rows, lane, sums);
      }
    } else {
      if (kOneBlock || fresh) Transfer::read(shared, warp, lane, rows);
      if (sizeof(State) == 4 || (!kOneBlock && !fresh)) {
        dots<P, true>(shared, rows, lane, sums);
      } else {
        dots<P, false>(shared, rows, lane, sums);
      }
    }
    fresh = false;
    float keep[P::kPerLane], v[2][P::kPerLane];
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      float pair[2];
      block.v[e].unpack(pair);
      v[0][e] = pair[0], v[1][e] = pair[1];
    }
    solve<P>(shared.coefficients, v, t, sums, keep);
    if (P::kOptions == Options::kAny && a.norm.present()) {
      normalise<P>(a, shared, row, block.first, static_cast<int>(tokens), static_cast<int>(head),
                   value, warp, lane, sums);
    }
#pragma unroll
    for (int e = 0; e < P::kPerLane; ++e) {
      const std::uint32_t token = P::kPerLane * t + e;
      if (token < tokens) {
        device::Pack<Io, 2> pack;
        const float pair[2] = {sums.o[0][e], sums.o[1][e]};
        pack.pack(pair);
        pack.store(static_cast<Io*>(a.out) + at(a.out_stride, row, block.first + token, head) +
                   value);
      }
    }
    const bool keeps = reaches && span.write >= 0;
    if (keeps || !last) update<P>(shared, sums, keep, lane, rows);
    if (keeps) {
      Transfer::write(shared, static_cast<State*>(a.state) + span.write * a.slot_stride + place,
                      a.line_stride, warp, lane, rows);
    }
    if (last) break;
    kept = kept || reaches;
    start = end;
    block.first += tokens;
    block.tokens = tokens_from(start);
    block.load(a, row, head, value, warp, lane);
    __syncthreads();  // the next block's keys overwrite this one's
  }
}

}  // namespace hyla::gdn
