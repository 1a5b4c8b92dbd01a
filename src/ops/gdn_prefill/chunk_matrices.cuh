// The matrices of a chunk that do not depend on the state, step by step, for a warpgroup:
//
//     L  = strict_lower(diag(beta) G o (K K^T))      G_ij = 2^(g_i - g_j)
//     T' = (I + L)^-1 diag(beta)
//     P  = scale lower(G o (Q K^T))
//
// Warp I owns rows 16 I ... 16 I + 15 of all of them. The L2 norm costs no pass over the data:
// squares of lengths are the diagonals of K K^T and Q Q^T, and inverse lengths go into the factors.
#pragma once

#include "arch/tma.cuh"
#include "arch/wgmma_n64.cuh"
#include "ops/gdn_prefill/chunk_inverse.cuh"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

// product = (K or Q) K^T, left running; `left`: 0 for K, 1 for Q
template <class Io>
__device__ __forceinline__ void multiply_rows(float (&product)[32], const KeyTiles<Io>& tiles,
                                              int left) {
  const arch::WgmmaDescriptor keys = arch::descriptor(arch::uniform(arch::shared_address(tiles)));
  const arch::WgmmaDescriptor rows = keys + static_cast<std::uint32_t>(left) * (kTileBytes >> 4);
  arch::pin(product);
  arch::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t step = (i & 3) * 2 + (i >> 2) * (2 * kTileBytes >> 4);
    arch::wgmma_n64<Io>(product, rows + step, keys + step, i > 0);
  }
  arch::wgmma_commit();
}

// Inverse lengths of the warp's 16 rows of K and Q: both diagonal 8 x 8 blocks of a product with
// itself, for which the left operand's quadrants are the right operand too.
template <class Io>
__device__ __forceinline__ void find_lengths(const PrefillProblem& p, const KeyTiles<Io>& keys,
                                             MaskFactors& masks, int thread) {
  const int lane = thread & 31, warp = thread >> 5;
  const float eps = static_cast<float>(p.l2norm_eps);
#pragma unroll 1
  for (int tensor = 0; tensor < 2; ++tensor) {
    float upper[4] = {}, lower[4] = {};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const auto row = static_cast<std::uint32_t>(warp * 16 + (lane & 15));
      const auto chunk = static_cast<std::uint32_t>((step & 3) * 2 + (lane >> 4));
      std::uint32_t x[4];
      arch::load_matrices(
          x, arch::shared_address(keys[2 * (step >> 2) + tensor]) + arch::swizzled(row, chunk));
      arch::mma_16x8x16<Io>(upper, x, x[0], x[2]);
      arch::mma_16x8x16<Io>(lower, x, x[1], x[3]);
    }
    const int row = lane >> 2, column = 2 * (lane & 3);
    if (column == (row & 6)) {
      const float sum = row & 1 ? upper[1] : upper[0], sum8 = row & 1 ? lower[3] : lower[2];
      const float x = rsqrtf(sum + eps), x8 = rsqrtf(sum8 + eps);
      const int i = warp * 16 + row;
      if (tensor == 0) {
        masks.key[i] = x, masks.key[i + 8] = x8;
      } else {
        const float scale = static_cast<float>(p.scale);
        masks.row_p[i] = scale * x, masks.row_p[i + 8] = scale * x8;
      }
    }
  }
}

// G of the warp's diagonal block: rows l / 4 and l / 4 + 8 of columns 0-7, then row l / 4 + 8 of
// columns 8-15; zero above the diagonal.
__device__ __forceinline__ void diagonal_decays(const MaskFactors& masks, int thread,
                                                float2 (&decays)[3]) {
  const int lane = thread & 31, row = lane >> 2, column = 2 * (lane & 3);
  const float* g = &masks.g[(thread >> 5) * 16];
  const float g0 = g[row], g8 = g[row + 8];
  const float2 c0 = *reinterpret_cast<const float2*>(&g[column]);
  const float2 c8 = *reinterpret_cast<const float2*>(&g[column + 8]);
  constexpr float kNever = -200.0f;
  const bool first = column <= row, second = column + 1 <= row;
  decays[0].x = exp2_fast(first ? g0 - c0.x : kNever);
  decays[0].y = exp2_fast(second ? g0 - c0.y : kNever);
  decays[1].x = exp2_fast(g8 - c0.x);
  decays[1].y = exp2_fast(g8 - c0.y);
  decays[2].x = exp2_fast(first ? g8 - c8.x : kNever);
  decays[2].y = exp2_fast(second ? g8 - c8.y : kNever);
}

// Times the keys' inverse lengths.
__device__ __forceinline__ void normalise(const MaskFactors& masks, int thread, float2 (&f)[3]) {
  const float* key = &masks.key[(thread >> 5) * 16 + 2 * (thread & 3)];
  const float2 c0 = *reinterpret_cast<const float2*>(key);
  const float2 c8 = *reinterpret_cast<const float2*>(key + 8);
  f[0].x *= c0.x, f[0].y *= c0.y, f[1].x *= c0.x, f[1].y *= c0.y;
  f[2].x *= c8.x, f[2].y *= c8.y;
}

// L: the warp's diagonal block in float32.
__device__ __forceinline__ void store_diagonal(const float (&product)[32],
                                               const float2 (&decays)[3], bool normalised,
                                               const MaskFactors& masks, InverseScratch& scratch,
                                               int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const float b0 = masks.row_l[warp * 16 + row], b8 = masks.row_l[warp * 16 + row + 8];
  float2 f[3] = {decays[0], decays[1], decays[2]};
  if (normalised) normalise(masks, thread, f);
  float* to = scratch.diagonal[warp] + row * 16;
  const int x = diagonal_column(row, column);
#pragma unroll
  for (int J = 0; J < 4; ++J) {
    if (J != warp) continue;
    const float* y = product + 8 * J;
    *reinterpret_cast<float2*>(&to[x]) = make_float2(y[0] * (f[0].x * b0), y[1] * (f[0].y * b0));
    *reinterpret_cast<float2*>(&to[128 + x]) =
        make_float2(y[2] * (f[1].x * b8), y[3] * (f[1].y * b8));
    *reinterpret_cast<float2*>(&to[128 + (x ^ 8)]) =
        make_float2(y[6] * (f[2].x * b8), y[7] * (f[2].y * b8));
  }
}

// Block J of the warp's rows times row and column factors.
template <class T>
__device__ __forceinline__ void masked_block(std::uint32_t (&r)[4], const float (&product)[32],
                                             int J, const float* factors, float row0, float row8) {
  const float* y = product + 8 * J;
  const float2 c0 = *reinterpret_cast<const float2*>(&factors[16 * J]);
  const float2 c8 = *reinterpret_cast<const float2*>(&factors[16 * J + 8]);
  r[0] = pack<T>(y[0] * (row0 * c0.x), y[1] * (row0 * c0.y));
  r[1] = pack<T>(y[2] * (row8 * c0.x), y[3] * (row8 * c0.y));
  r[2] = pack<T>(y[4] * (row0 * c8.x), y[5] * (row0 * c8.y));
  r[3] = pack<T>(y[6] * (row8 * c8.x), y[7] * (row8 * c8.y));
}

// L: the blocks left of it in fp16.
__device__ __forceinline__ void store_lower(const float (&product)[32], const MaskFactors& masks,
                                            InverseScratch& scratch, int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const float b0 = masks.block_l[warp * 16 + row], b8 = masks.block_l[warp * 16 + row + 8];
  const float* factors = &masks.column[0][0] + (warp - 1) * 48 + column;
  const std::uint32_t to = arch::shared_address(scratch.lower[0]) +
                           static_cast<std::uint32_t>(warp * (warp - 1) / 2) * kBlockBytes +
                           block_offset(lane);
#pragma unroll
  for (int J = 0; J < 3; ++J) {
    if (J >= warp) continue;
    std::uint32_t r[4];
    masked_block<__half>(r, product, J, factors, b0, b8);
    arch::store_matrices(to + J * kBlockBytes, r);
  }
}

// Where lane l's row of a 16 x 16 block J of the warp's rows lies in a tile, for store_matrices.
struct BlockAddress {
  std::uint32_t row_address, chunk;
  __device__ __forceinline__ std::uint32_t operator()(int J) const {
    return row_address + ((chunk ^ static_cast<std::uint32_t>(2 * J)) << 4);
  }
};

template <class Io>
__device__ __forceinline__ BlockAddress block_address(const Io* tile, int thread) {
  const int lane = thread & 31;
  const auto row = static_cast<std::uint32_t>((thread >> 5) * 16 + (lane & 15));
  return {arch::shared_address(tile) + row * 128,
          static_cast<std::uint32_t>(lane >> 4) ^ (row & 7)};
}

// P into a tile, with a fence for those who read it by products or copies.
template <class Io>
__device__ __forceinline__ void store_scores(const float (&product)[32],
                                             const std::uint32_t (&decays)[3], bool normalised,
                                             const MaskFactors& masks, Io* tile, int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const BlockAddress to = block_address(tile, thread);
  {
    const float b0 = masks.block_p[warp * 16 + row], b8 = masks.block_p[warp * 16 + row + 8];
    const float* factors = &masks.column[0][0] + (warp - 1) * 48 + column;
#pragma unroll
    for (int J = 0; J < 3; ++J) {
      if (J >= warp) continue;
      std::uint32_t r[4];
      masked_block<Io>(r, product, J, factors, b0, b8);
      arch::store_matrices(to(J), r);
    }
  }
  const float b0 = masks.row_p[warp * 16 + row], b8 = masks.row_p[warp * 16 + row + 8];
  float2 f[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) f[i] = unpack<__half>(decays[i]);
  if (normalised) normalise(masks, thread, f);
#pragma unroll
  for (int J = 0; J < 4; ++J) {
    if (J != warp) continue;
    const float* y = product + 8 * J;
    const std::uint32_t r[4] = {pack<Io>(y[0] * (f[0].x * b0), y[1] * (f[0].y * b0)),
                                pack<Io>(y[2] * (f[1].x * b8), y[3] * (f[1].y * b8)), 0u,
                                pack<Io>(y[6] * (f[2].x * b8), y[7] * (f[2].y * b8))};
    arch::store_matrices(to(J), r);
  }
  arch::fence_async_proxy();
}

// T' = T diag(beta) into a tile, with the fence.
template <class Io>
__device__ __forceinline__ void store_inverse(const InverseScratch& scratch,
                                              const MaskFactors& masks, Io* tile, int thread) {
  const int lane = thread & 31, column = 2 * (lane & 3);
  const float* beta = &masks.beta[column];
  const BlockAddress to = block_address(tile, thread);
  invert_blocks(scratch, thread >> 5, lane, [&](int J, const float(&t)[8]) {
    const float2 b0 = *reinterpret_cast<const float2*>(&beta[J * 16]);
    const float2 b8 = *reinterpret_cast<const float2*>(&beta[J * 16 + 8]);
    const std::uint32_t r[4] = {
        pack<Io>(t[0] * b0.x, t[1] * b0.y), pack<Io>(t[2] * b0.x, t[3] * b0.y),
        pack<Io>(t[4] * b8.x, t[5] * b8.y), pack<Io>(t[6] * b8.x, t[7] * b8.y)};
    arch::store_matrices(to(J), r);
  });
  arch::fence_async_proxy();
}

}  // namespace hyla::gdn
