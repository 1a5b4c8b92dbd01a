// Products of the keys and queries of a block's tokens with a warp's 16 rows of the state, in two
// sums, so that one need not wait for the other: of the high and of the low parts of a float32
// state, of every other step of one in 16 bits.
//
// What is the first operand of a product wants four registers side by side. States [.., K, V] are
// read as two neighbouring rows of one column, which fits the first operand, and the sums come by
// row. States [.., V, K] are read as four columns of one row, which fits the second; k and q of 8
// tokens are then the 16 rows of the first, and the sums come by token.
#pragma once

#include <type_traits>

#include "arch/mma.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_state.cuh"

namespace hyla::gdn {

// Split: the state is not a tf32 number, so its low part has products of its own, of half as many
// steps where bfloat16 can hold it.
template <class P, bool Split>
inline constexpr bool kShortLow = (Split && std::is_same_v<typename P::Io, __nv_bfloat16>);

// The state as the second operand.
template <class P>
struct DotsByToken {
  using Io = typename P::Io;
  float sum[2][2][4] = {};  // row n of the pairs; k of token g, q of token g

  template <bool Split>
  __device__ __forceinline__ void add(const BlockKeys<P>& keys, const StepRows& rows, int j,
                                      int lane) {
    const KeyQuads quads = key_quads<P>(keys, j, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 quad = quads.halves[half];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 words;
        widen<Io>(i == 0 ? quad.x : quad.z, words.x, words.z);
        widen<Io>(i == 0 ? quad.y : quad.w, words.y, words.w);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float* s = &rows.s[2 * half + i][2 * n];
          arch::mma_16x8x8_tf32(sum[n][0], words.x, words.y, words.z, words.w,
                                __float_as_uint(s[0]), __float_as_uint(s[1]));
          if constexpr (Split && !kShortLow<P, Split>) {
            arch::mma_16x8x8_tf32(sum[n][1], words.x, words.y, words.z, words.w, split(s[0]).low,
                                  split(s[1]).low);
          }
        }
      }
      if constexpr (kShortLow<P, Split>) {
        const std::uint32_t a[] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          arch::mma_16x8x16<Io>(sum[n][1], a, rows.packed_low<Io>(2 * half, n),
                                rows.packed_low<Io>(2 * half + 1, n));
        }
      }
    }
  }
  // A state in the dtype of q and k, which the tensor cores take as it is.
  __device__ __forceinline__ void add(const BlockKeys<P>& keys,
                                      const PackedStep<typename P::State>& rows, int j, int lane) {
    const KeyQuads quads = key_quads<P>(keys, j, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 quad = quads.halves[half];
      const std::uint32_t a[] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        arch::mma_16x8x16<Io>(sum[n][half], a, rows.words[2 * half][n],
                              rows.words[2 * half + 1][n]);
      }
    }
  }
  // k.S and q.S of row n of the lane's pair, tokens 2 t + e; through shared memory.
  __device__ __forceinline__ void by_row(MtpBlockShared<P>& shared, int warp, int lane,
                                         float (&k)[2][2], float (&q)[2][2]) const {
    const int g = lane >> 2, t = lane & 3;
    MtpTurn& turn = shared.turn[warp];
    if constexpr (P::kBlocks > 1) __syncwarp();  // all lanes have read those of the block before
    *reinterpret_cast<float4*>(&turn.k[g][4 * t]) = four_rows(0);
    *reinterpret_cast<float4*>(&turn.q[g][4 * t]) = four_rows(2);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float2 of_k = *reinterpret_cast<const float2*>(&turn.k[2 * t + e][2 * g]);
      const float2 of_q = *reinterpret_cast<const float2*>(&turn.q[2 * t + e][2 * g]);
      k[0][e] = of_k.x, k[1][e] = of_k.y;
      q[0][e] = of_q.x, q[1][e] = of_q.y;
    }
  }

 private:
  // k.S (first = 0) or q.S (first = 2) of token g: rows 4 t + 0..3 in the order of the pairs.
  __device__ __forceinline__ float4 four_rows(int first) const {
    const auto total = [&](int n, int i) { return sum[n][0][i] + sum[n][1][i]; };
    return make_float4(total(0, first), total(1, first), total(0, first + 1), total(1, first + 1));
  }
};

// The state as the first operand.
template <class P>
struct DotsByRow {
  using Io = typename P::Io;
  float sum[2][2][4] = {};  // k, q; rows of the pair, tokens 2 t + 0..1

  template <bool Split>
  __device__ __forceinline__ void add(const BlockKeys<P>& keys, const StepRows& rows, int j,
                                      int lane) {
    const uint4 words[2] = {key_words<P>(keys, 0, j, lane), key_words<P>(keys, 1, j, lane)};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float(&s)[4] = rows.s[m];
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        std::uint32_t b0, b1;
        widen<Io>(word_of(words[which], m), b0, b1);
        arch::mma_16x8x8_tf32(sum[which][0], __float_as_uint(s[0]), __float_as_uint(s[2]),
                              __float_as_uint(s[1]), __float_as_uint(s[3]), b0, b1);
        if constexpr (Split && !kShortLow<P, Split>) {
          arch::mma_16x8x8_tf32(sum[which][1], split(s[0]).low, split(s[2]).low, split(s[1]).low,
                                split(s[3]).low, b0, b1);
        }
      }
    }
    if constexpr (kShortLow<P, Split>) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = rows.packed_low<Io>(2 * half + i / 2, i % 2);
        multiply_half(words, a, half, 1);
      }
    }
  }
  __device__ __forceinline__ void add(const BlockKeys<P>& keys,
                                      const PackedStep<typename P::State>& rows, int j, int lane) {
    const uint4 words[2] = {key_words<P>(keys, 0, j, lane), key_words<P>(keys, 1, j, lane)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t a[4] = {rows.words[2 * half][0], rows.words[2 * half][1],
                                  rows.words[2 * half + 1][0], rows.words[2 * half + 1][1]};
      multiply_half(words, a, half, half);
    }
  }
  __device__ __forceinline__ void by_row(MtpBlockShared<P>&, int, int, float (&k)[2][2],
                                         float (&q)[2][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[i / 2][i % 2] = sum[0][0][i] + sum[0][1][i];
      q[i / 2][i % 2] = sum[1][0][i] + sum[1][1][i];
    }
  }

 private:
  __device__ __forceinline__ void multiply_half(const uint4 (&words)[2],
                                                const std::uint32_t (&a)[4], int half, int chain) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      arch::mma_16x8x16<Io>(sum[which][chain], a, word_of(words[which], 2 * half),
                            word_of(words[which], 2 * half + 1));
    }
  }
};

template <class P>
using BlockDots = std::conditional_t<P::kStateFirst, DotsByRow<P>, DotsByToken<P>>;

}  // namespace hyla::gdn
