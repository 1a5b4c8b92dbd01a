// The matrices of a chunk that do not depend on the state, step by step, for a warpgroup:
//
//     L  = strict_lower(diag(beta) G o (K K^T))      G_ij = 2^(g_i - g_j)
//     T' = (I + L)^-1 diag(beta)
//     P  = scale lower(G o (Q K^T))
//
// Warp I owns rows 16 I ... 16 I + 15 of all of them. The L2 norm costs no pass over the data:
// squares of lengths are the diagonals of K K^T and Q Q^T, and inverse lengths go into the factors.
// Those of columns do not even meet L: with M without norms, and a the keys' inverse lengths,
//
//     diag(a) (I + diag(beta a) M diag(a))^-1 diag(beta) = (I + diag(beta a^2) M)^-1 diag(beta a)
//
// where fp16 has the range for it (in_reach in chunk_gates.cuh).
#pragma once

#include "arch/tma.cuh"
#include "arch/wgmma_any.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
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
    arch::Wgmma<Io, 64>::ss(product, rows + step, keys + step, accumulate || i > 0);
  }
  arch::wgmma_commit();
}

// A warp's diagonal block as its lanes have it: rows l / 4 and l / 4 + 8 of columns 0-7, then row
// l / 4 + 8 of columns 8-15. What is above the diagonal blocks of 8 is left out.
struct DiagonalBlock {
  float2 first, below, second;
};

__device__ __forceinline__ DiagonalBlock diagonal_block(const float (&product)[32], int warp) {
  const bool high = (warp & 2) != 0, odd = (warp & 1) != 0;
  const auto own = [&](int i) {
    const float low_pair = odd ? product[8 + i] : product[i];
    const float high_pair = odd ? product[24 + i] : product[16 + i];
    return high ? high_pair : low_pair;
  };
  return {{own(0), own(1)}, {own(2), own(3)}, {own(6), own(7)}};
}

// The diagonal of a 16 x 16 product, of rows l / 4 and l / 4 + 8: element (r, r) is with lane
// 4 r + r / 2. `upper`, `lower`: what the lane has of both quadrants on the diagonal.
__device__ __forceinline__ float2 on_diagonal(float2 upper, float2 lower, int lane) {
  const bool odd = (lane & 4) != 0;
  const int with = (lane & 28) | (lane >> 3);
  return make_float2(__shfl_sync(device::kFullWarp, odd ? upper.y : upper.x, with),
                     __shfl_sync(device::kFullWarp, odd ? lower.y : lower.x, with));
}

// |k|^2 of these rows of the warp, from K K^T.
__device__ __forceinline__ float2 key_squares(const DiagonalBlock& y, int lane) {
  return on_diagonal(y.first, y.second, lane);
}

// |q|^2 of them: both diagonal 8 x 8 blocks of a product with itself, for which the left operand's
// quadrants are the right operand too.
struct QuerySquares {
  float upper[4] = {}, lower[4] = {};

  // 128 columns.
  template <class Io>
  __device__ __forceinline__ void add(const KeyTiles<Io>& keys, int thread) {
    const int lane = thread & 31;
    const auto row = static_cast<std::uint32_t>((thread >> 5) * 16 + (lane & 15));
    const std::uint32_t from = arch::shared_address(keys[1]) + row * 128;
    const std::uint32_t chunk = static_cast<std::uint32_t>(lane >> 4) ^ (row & 7);
#pragma unroll
    for (std::uint32_t step = 0; step < 8; ++step) {
      std::uint32_t x[4];
      arch::load_matrices(x,
                          from + ((chunk ^ (step & 3) * 2) << 4) + (step >> 2) * (2 * kTileBytes));
      arch::mma_16x8x16<Io>(upper, x, x[0], x[2]);
      arch::mma_16x8x16<Io>(lower, x, x[1], x[3]);
    }
  }

  __device__ __forceinline__ float2 sums(int thread) const {
    return on_diagonal(make_float2(upper[0], upper[1]), make_float2(lower[2], lower[3]),
                       thread & 31);
  }
};

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

// L: the warp's diagonal block in float32; what is on and above the diagonal is not read. `rows`:
// what rows l / 4 and l / 4 + 8 are multiplied by, beta and what the keys' lengths make of it.
__device__ __forceinline__ void store_diagonal(const DiagonalBlock& y, bool mild, float2 rows,
                                               const std::uint32_t (&gates)[2][64],
                                               InverseScratch& scratch, int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2, column = 2 * (lane & 3);
  float2 f[3] = {{rows.x, rows.x}, {rows.y, rows.y}, {rows.y, rows.y}};
  if (!mild) [[unlikely]] {
    diagonal_decays(gates, thread, f);
    f[0].x *= rows.x, f[0].y *= rows.x, f[1].x *= rows.y, f[1].y *= rows.y;
    f[2].x *= rows.y, f[2].y *= rows.y;
  }
  float* diagonal = scratch.diagonal[warp] + row * 16;
  const int x = diagonal_column(row, column);
  *reinterpret_cast<float2*>(&diagonal[x]) = make_float2(y.first.x * f[0].x, y.first.y * f[0].y);
  *reinterpret_cast<float2*>(&diagonal[128 + x]) =
      make_float2(y.below.x * f[1].x, y.below.y * f[1].y);
  *reinterpret_cast<float2*>(&diagonal[128 + (x ^ 8)]) =
      make_float2(y.second.x * f[2].x, y.second.y * f[2].y);
}

// L: the blocks left of it in fp16. `rows`: mild as above, otherwise with the decays of `block_l`.
__device__ __forceinline__ void store_lower(const float (&product)[32], bool mild, float2 rows,
                                            const MaskFactors& masks, InverseScratch& scratch,
                                            int thread) {
  const int lane = thread & 31, warp = thread >> 5, column = 2 * (lane & 3);
  const std::uint32_t to = arch::shared_address(scratch.lower[0]) +
                           static_cast<std::uint32_t>(warp * (warp - 1) / 2) * kBlockBytes +
                           block_offset(lane);
  if (mild) [[likely]] {
#pragma unroll
    for (int J = 0; J < 3; ++J) {
      if (J >= warp) continue;
      std::uint32_t r[4];
      scaled_block<__half>(r, product, J, rows.x, rows.y);
      arch::store_matrices(to + J * kBlockBytes, r);
    }
    return;
  }
  const float* factors = masks.column + column_start(warp) + column;
#pragma unroll
  for (int J = 0; J < 3; ++J) {
    if (J >= warp) continue;
    std::uint32_t r[4];
    masked_block<__half>(r, product, J, factors, rows.x, rows.y);
    arch::store_matrices(to + J * kBlockBytes, r);
  }
}

// A number of rows l / 4 and l / 4 + 8 of the warp's.
__device__ __forceinline__ float2 of_rows(const float* x, int thread) {
  x += (thread >> 5) * 16 + (thread >> 2 & 7);
  return make_float2(x[0], x[8]);
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
  const DiagonalBlock y = diagonal_block(product, warp);
  const std::uint32_t r[4] = {pack<Io>(y.first.x * f[0].x, y.first.y * f[0].y),
                              pack<Io>(y.below.x * f[1].x, y.below.y * f[1].y), 0u,
                              pack<Io>(y.second.x * f[2].x, y.second.y * f[2].y)};
  arch::store_matrices(to(warp), r);
  arch::fence_async_proxy();
}

// T' = T diag(column_t) into a tile. Rows: T is that of an L with normalised columns, and
// T' = diag(a) T diag(column_t). Whether the warp's rows have overflown: then they have to be
// solved. Either way a fence is due for those who read the tile by products or copies.
template <bool Rows, class Io>
__device__ __forceinline__ bool put_inverse(const InverseScratch& scratch, const MaskFactors& masks,
                                            Io* tile, int thread) {
  const int lane = thread & 31, warp = thread >> 5, column = 2 * (lane & 3);
  const float* factors = &masks.column_t[column];
  const BlockAddress to = block_address(tile, thread);
  Overflow<Io> overflow;
  invert_blocks(scratch, warp, lane, [&](int J, float(&t)[8]) {
    const float2 b0 = *reinterpret_cast<const float2*>(&factors[J * 16]);
    const float2 b8 = *reinterpret_cast<const float2*>(&factors[J * 16 + 8]);
    if constexpr (Rows) {
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
  return overflow.any();
}

// The same rows in float32; by the whole warp.
template <bool Rows, class Io>
__device__ __forceinline__ void solve_inverse(const InverseScratch& scratch,
                                              const MaskFactors& masks, Io* tile, int thread) {
  __syncwarp();
  char* bytes = reinterpret_cast<char*>(tile);
  solve_rows(scratch, thread >> 5, thread & 31, [&](int i, int j, float t) {
    if constexpr (Rows) t *= masks.key[i];
    const std::uint32_t at =
        arch::swizzled(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j >> 3));
    *reinterpret_cast<Io*>(bytes + at + 2 * (j & 7)) =
        device::from_float<Io>(t * masks.column_t[j]);
  });
}

// Both, with the fence.
template <bool Rows, class Io>
__device__ __forceinline__ void store_inverse(const InverseScratch& scratch,
                                              const MaskFactors& masks, Io* tile, int thread) {
  if (put_inverse<Rows>(scratch, masks, tile, thread)) [[unlikely]] {
    solve_inverse<Rows>(scratch, masks, tile, thread);
  }
  arch::fence_async_proxy();
}

}  // namespace hyla::gdn
