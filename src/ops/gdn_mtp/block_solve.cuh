// y and o of a block's tokens from the dots with the state.
#pragma once

#include "arch/mma.cuh"
#include "ops/gdn_mtp/block_dots.cuh"

namespace hyla::gdn {

// y and o of a lane and what both are made of: rows n of its pair, tokens 2 t + e.
struct BlockSums {
  float b[2][2], y[2][2], o[2][2];
};

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
  arch::mma_16x8x8_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
  arch::mma_16x8x8_tf32(small, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
  arch::mma_16x8x8_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += small[i];
}

// y from the dots k.S and v (row n, token 2 t + e).
__device__ __forceinline__ void solve(const MtpCoefficients& c, const float (&k)[2][2],
                                      const float (&v)[2][2], int lane, BlockSums& sums) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const MtpCoefficients::Token token = c.token[2 * (lane & 3) + e];
#pragma unroll
    for (int n = 0; n < 2; ++n) sums.b[n][e] = token.value * v[n][e] - token.key * k[n][e];
  }
  float y[4] = {};
  multiply(sums.b, c.solved, lane, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.y[i / 2][i % 2] = y[i];
}

// What o takes from the state, from the dots q.S.
__device__ __forceinline__ void begin_outputs(const MtpCoefficients& c, const float (&q)[2][2],
                                              int lane, BlockSums& sums) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float query = c.token[2 * (lane & 3) + e].query;
#pragma unroll
    for (int n = 0; n < 2; ++n) sums.o[n][e] = query * q[n][e];
  }
}

template <class P>
__device__ __forceinline__ void solve(MtpBlockShared<P>& shared, const MtpCoefficients& c,
                                      const BlockDots<P>& dots, const float (&v)[2][2], int warp,
                                      int lane, BlockSums& sums) {
  float k[2][2], q[2][2];
  dots.by_row(shared, warp, lane, k, q);
  begin_outputs(c, q, lane, sums);
  solve(c, k, v, lane, sums);
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

}  // namespace hyla::gdn
