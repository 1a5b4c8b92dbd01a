// T = (I + L)^-1 of a strictly lower 64 x 64 matrix by the four warps of a warpgroup; warp I owns
// rows 16 I ... 16 I + 15.
//
// The diagonal blocks are inverted first: two 8 x 8 forward substitutions in float32, joined by two
// products. Then, for J = I - 1, ..., 0,
//
//     T_IJ = -(sum over M = J + 1 ... I of T_IM L_MJ) T_JJ
//
// where T_IM are fragments that the warp holds itself: an accumulator is laid out as the next
// product's left operand. Products take fp16 operands and float32 accumulators.
#pragma once

#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "arch/registers.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/pairs.cuh"

namespace hyla::gdn {

// Byte offset of lane l's row for load_matrices of a 16 x 16 block: x4 gives the four quadrants as
// a left operand has them.
__device__ __forceinline__ std::uint32_t block_offset(int lane) {
  return static_cast<std::uint32_t>((lane & 15) * kBlockPitch + (lane >> 4) * 8) * 2;
}

// The same for the inverse of a diagonal block, which is kept transposed: its column is written by
// the thread that finds it. load_matrices_transposed gives a left operand, load_matrices a right
// one.
__device__ __forceinline__ std::uint32_t inverse_offset(int lane) {
  return static_cast<std::uint32_t>(((lane & 7) + (lane >> 4) * 8) * kBlockPitch +
                                    (lane >> 3 & 1) * 8) *
         2;
}

// Where column `column` of a row of a diagonal block lies: 16-byte chunks are XORed with half the
// row number, so that eight rows of a column lie in different banks.
__device__ __forceinline__ int diagonal_column(int row, int column) {
  return column ^ (((row >> 1) & 3) << 2);
}

// scratch.diagonal[warp] to scratch.inverse[warp]; by one warp.
__device__ __forceinline__ void invert_diagonal(InverseScratch& scratch, int warp, int lane) {
  const float* d = scratch.diagonal[warp];
  __half* inverse = scratch.inverse[warp];
  const int column = lane & 15, block = column >> 3;
  const float* d8 = d + block * 128;
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float sum = i == (column & 7) ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 row =
          *reinterpret_cast<const float4*>(&d8[i * 16 + diagonal_column(i, m + 8 * block)]);
      sum = fmaf(-row.x, y[m], sum);
      if (m + 1 < i) sum = fmaf(-row.y, y[m + 1], sum);
      if (m + 2 < i) sum = fmaf(-row.z, y[m + 2], sum);
      if (m + 3 < i) sum = fmaf(-row.w, y[m + 3], sum);
    }
    y[i] = sum;
  }
  // Lanes 16-31 write the zeros above the diagonal and, until they are known, below it.
  const std::uint32_t keep = lane < 16 ? 0xffffffffu : 0u;
  *reinterpret_cast<uint4*>(inverse + column * kBlockPitch + 8 * (block ^ (lane >> 4))) =
      make_uint4(pack<__half>(y[0], y[1]) & keep, pack<__half>(y[2], y[3]) & keep,
                 pack<__half>(y[4], y[5]) & keep, pack<__half>(y[6], y[7]) & keep);
  __syncwarp();
  // The block below, transposed: -(A^-T C^T) D^-T with C of L.
  const std::uint32_t address = arch::shared_address(inverse) + inverse_offset(lane);
  const int row = lane >> 2, pair = 2 * (lane & 3);
  const float2 c =
      *reinterpret_cast<const float2*>(&d[(row + 8) * 16 + diagonal_column(row + 8, pair)]);
  std::uint32_t x[4];
  arch::load_matrices(x, address);
  const std::uint32_t left[4] = {x[0], 0u, 0u, 0u};
  float z[4] = {};
  arch::mma_16x8x16<__half>(z, left, pack<__half>(c.x, c.y), 0u);
  arch::load_matrices_transposed(x, address);
  const std::uint32_t z_operand[4] = {pack<__half>(-z[0], -z[1]), 0u, 0u, 0u};
  float below[4] = {};
  arch::mma_16x8x16<__half>(below, z_operand, x[3], 0u);
  *reinterpret_cast<std::uint32_t*>(&inverse[row * kBlockPitch + 8 + pair]) =
      pack<__half>(below[0], below[1]);
}

// T_II, then T_IJ for J = I - 1 ... 0, each handed to put(J, values) as an accumulator: rows
// l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1} and 8 more. After a barrier over all diagonal
// inverses; by every warp I.
template <class Put>
__device__ __forceinline__ void invert_blocks(const InverseScratch& scratch, int I, int lane,
                                              Put&& put) {
  const std::uint32_t offset = block_offset(lane);
  const std::uint32_t own = arch::shared_address(scratch.inverse[I]) + inverse_offset(lane);
  const std::uint32_t lower = arch::shared_address(scratch.lower[0]) + offset;
  std::uint32_t T[3][4];  // T_II, T_I,I-1, T_I,I-2
  arch::load_matrices_transposed(T[0], own);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Defined on every path: else they would be live around the loop over chunks.
    T[1][i] = T[2][i] = 0u;
    asm volatile("" : "+r"(T[1][i]), "+r"(T[2][i]));
  }
  {
    float t[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<__half>(T[0][i]);
      t[2 * i] = pair.x, t[2 * i + 1] = pair.y;
    }
    put(I, t);
  }
#pragma unroll
  for (int distance = 1; distance < 4; ++distance) {
    if (distance > I) continue;
    const int J = I - distance;
    float sum[8] = {};
#pragma unroll
    for (int m = 0; m < distance; ++m) {
      const int M = I - m;
      std::uint32_t b[4];
      arch::load_matrices_transposed(
          b, lower + static_cast<std::uint32_t>(M * (M - 1) / 2 + J) * kBlockBytes);
      arch::mma_16x8x16<__half>(sum, T[m], b[0], b[1]);
      arch::mma_16x8x16<__half>(sum + 4, T[m], b[2], b[3]);
    }
    std::uint32_t b[4];
    arch::load_matrices(b, own - static_cast<std::uint32_t>(distance) * kBlockBytes);
    std::uint32_t left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = pack<__half>(-sum[2 * i], -sum[2 * i + 1]);
    float t[8] = {};
    arch::mma_16x8x16<__half>(t, left, b[0], b[1]);
    arch::mma_16x8x16<__half>(t + 4, left, b[2], b[3]);
    if (distance < 3) {
#pragma unroll
      for (int i = 0; i < 4; ++i) T[distance][i] = pack<__half>(t[2 * i], t[2 * i + 1]);
    }
    put(J, t);
  }
}

}  // namespace hyla::gdn
