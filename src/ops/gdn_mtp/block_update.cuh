// What a block's tokens add to a warp's rows of the state.
#pragma once

#include "arch/mma.cuh"
#include "arch/mma_short.cuh"
#include "ops/gdn_mtp/block_solve.cuh"

namespace hyla::gdn {

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

// y of the tokens that are kept.
__device__ __forceinline__ BlockSums kept(const MtpCoefficients& c, const BlockSums& sums,
                                          int lane) {
  BlockSums result = sums;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float keep = c.token[2 * (lane & 3) + e].keep;
    result.y[0][e] *= keep, result.y[1][e] *= keep;
  }
  return result;
}

// S' = decay S + y k.
template <class Io>
struct BlockUpdate {
  KeptSums<Io> y;
  float decay;

  __device__ __forceinline__ BlockUpdate(const MtpCoefficients& c, const BlockSums& sums, int lane)
      : y(kept(c, sums, lane).y), decay(c.decay) {}

  // keys: turned, of the rows' step.
  __device__ __forceinline__ void apply(const uint4& keys, StepRows& rows) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float d[4] = {};
      y.multiply(word_of(keys, m), d);
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.s[m][i] = fmaf(decay, rows.s[m][i], d[i]);
    }
  }
};

}  // namespace hyla::gdn
