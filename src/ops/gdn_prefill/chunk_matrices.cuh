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
#include "device/dtype.cuh"
#include "ops/gdn_prefill/chunk_inverse_exact.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

// product (+)= (K or Q) K^T, left running; `left`: 0 for K, 1 for Q
template <class Io>
__device__ __forceinline__ void multiply_rows(float (&product)[32], const KeyTiles<Io>& tiles,
                                              int left, bool accumulate = false) {
  const arch::WgmmaDescriptor keys = arch::descriptor(arch::uniform(arch::shared_address(tiles)));
  const arch::WgmmaDescriptor rows = keys + static_cast<std::uint32_t>(left) * (kTileBytes >> 4);
  arch::pin(product);
  arch::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t step = (i & 3) * 2 + (i >> 2) * (2 * kTileBytes >> 4);
    arch::wgmma_n64<Io>(product, rows + step, keys + step, accumulate || i > 0);
  }
  arch::wgmma_commit();
}

// Squares of the lengths of the warp's 16 rows of K (tensor 0) or Q (1), to be added to those of
// other columns: both diagonal 8 x 8 blocks of a product with itself, for which the left operand's
// quadrants are the right operand too.
struct Squares {
  float upper[4] = {}, lower[4] = {};

  template <class Io>
  __device__ __forceinline__ void add(const KeyTiles<Io>& keys, int tensor, int thread) {
    const int lane = thread & 31, warp = thread >> 5;
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
  }

  // As inverse lengths, into the factors.
  __device__ __forceinline__ void store(const FusedArguments& arguments, int tensor,
                                        MaskFactors& masks, int thread) const {
    const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
    if (column != (row & 6)) return;
    const float sum = row & 1 ? upper[1] : upper[0], sum8 = row & 1 ? lower[3] : lower[2];
    const float x = rsqrtf(sum + arguments.eps), x8 = rsqrtf(sum8 + arguments.eps);
    const int i = warp * 16 + row;
    if (tensor == 0) {
      masks.key[i] = x, masks.key[i + 8] = x8;
    } else {
      masks.query[i] = arguments.scale * x, masks.query[i + 8] = arguments.scale * x8;
    }
  }
};

// Inverse lengths of the warp's 16 rows of K and Q.
template <class Io>
__device__ __forceinline__ void find_lengths(const FusedArguments& arguments,
                                             const KeyTiles<Io>& keys, MaskFactors& masks,
                                             int thread) {
#pragma unroll 1
  for (int tensor = 0; tensor < 2; ++tensor) {
    Squares squares;
    squares.add(keys, tensor, thread);
    squares.store(arguments, tensor, masks, thread);
  }
}

// G of the warp's diagonal block: rows l / 4 and l / 4 + 8 of columns 0-7, then row l / 4 + 8 of
// columns 8-15; zero above the diagonal.
__device__ __forceinline__ void diagonal_decays(const std::uint32_t (&gates)[2][64], int thread,
                                                float2 (&decays)[3]) {
  const int lane = thread & 31, row = lane >> 2, column = 2 * (lane & 3);
  const float* g = reinterpret_cast<const float*>(gates[0]) + (thread >> 5) * 16;
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

// Columns times the keys' inverse lengths.
__device__ __forceinline__ void normalise_columns(float (&product)[32], const MaskFactors& masks,
                                                  int thread) {
  const float* key = &masks.key[2 * (thread & 3)];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 a = *reinterpret_cast<const float2*>(&key[8 * j]);
    product[4 * j] *= a.x, product[4 * j + 1] *= a.y;
    product[4 * j + 2] *= a.x, product[4 * j + 3] *= a.y;
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

// The same without column factors.
template <class T>
__device__ __forceinline__ void scaled_block(std::uint32_t (&r)[4], const float (&product)[32],
                                             int J, float row0, float row8) {
  const float* y = product + 8 * J;
  r[0] = pack<T>(y[0] * row0, y[1] * row0);
  r[1] = pack<T>(y[2] * row8, y[3] * row8);
  r[2] = pack<T>(y[4] * row0, y[5] * row0);
  r[3] = pack<T>(y[6] * row8, y[7] * row8);
}

// L: the warp's diagonal block in float32; what is on and above the diagonal is not read.
__device__ __forceinline__ void store_diagonal(const float (&product)[32], bool mild,
                                               const std::uint32_t (&gates)[2][64],
                                               const MaskFactors& masks, InverseScratch& scratch,
                                               int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const float b0 = masks.row_l[warp * 16 + row], b8 = masks.row_l[warp * 16 + row + 8];
  float2 f[3] = {{b0, b0}, {b8, b8}, {b8, b8}};
  if (!mild) [[unlikely]] {
    diagonal_decays(gates, thread, f);
    f[0].x *= b0, f[0].y *= b0, f[1].x *= b8, f[1].y *= b8, f[2].x *= b8, f[2].y *= b8;
  }
  float* diagonal = scratch.diagonal[warp] + row * 16;
  const int x = diagonal_column(row, column);
#pragma unroll
  for (int J = 0; J < 4; ++J) {
    if (J != warp) continue;
    const float* y = product + 8 * J;
    *reinterpret_cast<float2*>(&diagonal[x]) = make_float2(y[0] * f[0].x, y[1] * f[0].y);
    *reinterpret_cast<float2*>(&diagonal[128 + x]) = make_float2(y[2] * f[1].x, y[3] * f[1].y);
    *reinterpret_cast<float2*>(&diagonal[128 + (x ^ 8)]) =
        make_float2(y[6] * f[2].x, y[7] * f[2].y);
  }
}

// L: the blocks left of it in fp16.
__device__ __forceinline__ void store_lower(const float (&product)[32], bool mild,
                                            const MaskFactors& masks, InverseScratch& scratch,
                                            int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const std::uint32_t to = arch::shared_address(scratch.lower[0]) +
                           static_cast<std::uint32_t>(warp * (warp - 1) / 2) * kBlockBytes +
                           block_offset(lane);
  if (mild) [[likely]] {
    const float b0 = masks.row_l[warp * 16 + row], b8 = masks.row_l[warp * 16 + row + 8];
#pragma unroll
    for (int J = 0; J < 3; ++J) {
      if (J >= warp) continue;
      std::uint32_t r[4];
      scaled_block<__half>(r, product, J, b0, b8);
      arch::store_matrices(to + J * kBlockBytes, r);
    }
    return;
  }
  const float block0 = masks.block_l[warp * 16 + row], block8 = masks.block_l[warp * 16 + row + 8];
  const float* factors = masks.column + column_start(warp) + column;
#pragma unroll
  for (int J = 0; J < 3; ++J) {
    if (J >= warp) continue;
    std::uint32_t r[4];
    masked_block<__half>(r, product, J, factors, block0, block8);
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
__device__ __forceinline__ void store_scores(const float (&product)[32], bool mild,
                                             const std::uint32_t (&gates)[2][64],
                                             const MaskFactors& masks, Io* tile, int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  const BlockAddress to = block_address(tile, thread);
  const float b0 = masks.row_p[warp * 16 + row], b8 = masks.row_p[warp * 16 + row + 8];
  float2 f[3];
  if (mild) [[likely]] {
#pragma unroll
    for (int J = 0; J < 3; ++J) {
      if (J >= warp) continue;
      std::uint32_t r[4];
      scaled_block<Io>(r, product, J, b0, b8);
      arch::store_matrices(to(J), r);
    }
    const bool first = column <= row, second = column + 1 <= row;
    f[0] = make_float2(first ? b0 : 0.0f, second ? b0 : 0.0f);
    f[1] = make_float2(b8, b8);
    f[2] = make_float2(first ? b8 : 0.0f, second ? b8 : 0.0f);
  } else {
    const float block0 = masks.block_p[warp * 16 + row];
    const float block8 = masks.block_p[warp * 16 + row + 8];
    const float* factors = masks.column + column_start(warp) + column;
#pragma unroll
    for (int J = 0; J < 3; ++J) {
      if (J >= warp) continue;
      std::uint32_t r[4];
      masked_block<Io>(r, product, J, factors, block0, block8);
      arch::store_matrices(to(J), r);
    }
    diagonal_decays(gates, thread, f);
    f[0].x *= b0, f[0].y *= b0, f[1].x *= b8, f[1].y *= b8, f[2].x *= b8, f[2].y *= b8;
  }
#pragma unroll
  for (int J = 0; J < 4; ++J) {
    if (J != warp) continue;
    const float* y = product + 8 * J;
    const std::uint32_t r[4] = {pack<Io>(y[0] * f[0].x, y[1] * f[0].y),
                                pack<Io>(y[2] * f[1].x, y[3] * f[1].y), 0u,
                                pack<Io>(y[6] * f[2].x, y[7] * f[2].y)};
    arch::store_matrices(to(J), r);
  }
  arch::fence_async_proxy();
}

// T' = diag(a) T diag(beta), mild: diag(a) T diag(beta 2^(g_last - g)), into a tile, with the fence.
template <class Io>
__device__ __forceinline__ void store_inverse(const InverseScratch& scratch, bool normalised,
                                              const MaskFactors& masks, Io* tile, int thread) {
  const int lane = thread & 31, warp = thread >> 5, column = 2 * (lane & 3);
  const float* factors = &masks.column_t[column];
  const BlockAddress to = block_address(tile, thread);
  Overflow<Io> overflow;
  invert_blocks(scratch, warp, lane, [&](int J, float(&t)[8]) {
    const float2 b0 = *reinterpret_cast<const float2*>(&factors[J * 16]);
    const float2 b8 = *reinterpret_cast<const float2*>(&factors[J * 16 + 8]);
    if (normalised) [[unlikely]] {
      const float* key = &masks.key[warp * 16 + (lane >> 2)];
      const float a0 = key[0], a8 = key[8];
      t[0] *= a0, t[1] *= a0, t[4] *= a0, t[5] *= a0;
      t[2] *= a8, t[3] *= a8, t[6] *= a8, t[7] *= a8;
    }
    const std::uint32_t r[4] = {
        pack<Io>(t[0] * b0.x, t[1] * b0.y), pack<Io>(t[2] * b0.x, t[3] * b0.y),
        pack<Io>(t[4] * b8.x, t[5] * b8.y), pack<Io>(t[6] * b8.x, t[7] * b8.y)};
    arch::store_matrices(to(J), r);
    // An infinity anywhere in the row makes one here: all blocks go into the last one.
    if (J == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) overflow.look_at(r[i]);
    }
  });
  if (overflow.any()) [[unlikely]] {
    __syncwarp();
    char* bytes = reinterpret_cast<char*>(tile);
    solve_rows(scratch, warp, lane, [&](int i, int j, float t) {
      if (normalised) t *= masks.key[i];
      const std::uint32_t at =
          arch::swizzled(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j >> 3));
      *reinterpret_cast<Io*>(bytes + at + 2 * (j & 7)) =
          device::from_float<Io>(t * masks.column_t[j]);
    });
  }
  arch::fence_async_proxy();
}

}  // namespace hyla::gdn
