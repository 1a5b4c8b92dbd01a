// L of a chunk from K K^T, with what the lengths of the keys make of it, by a warpgroup: for
// whoever makes a chunk's matrices outside of the fused kernel.
#pragma once

#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

// The blocks above the diagonal of a tile, where T' and P are zero.
template <class Io>
__device__ __forceinline__ void clear_upper(Io* tile, int thread) {
  const BlockAddress to = block_address(tile, thread);
  const std::uint32_t zeros[4] = {};
#pragma unroll
  for (int J = 1; J < 4; ++J) {
    if (J > thread >> 5) arch::store_matrices(to(J), zeros);
  }
}

// Does one of two tokens not hold to 0 <= beta |k|^2 <= 2? `squares`: |k|^2, of normalised keys
// with the L2 norm.
__device__ __forceinline__ bool grows(float2 beta, float2 squares) {
  const float x = beta.x * squares.x, y = beta.y * squares.y;
  return !(x >= 0.0f && x <= kMostErased && y >= 0.0f && y <= kMostErased);
}

// Sync: a barrier of the warpgroup.
template <class Sync>
struct LowerPart {
  const FusedArguments& a;
  const std::uint32_t (&gates)[2][64];
  MaskFactors& masks;
  Factors& factors;
  InverseScratch& scratch;
  const int thread;
  const Sync sync;

  // L and the factors that wait for the keys' lengths. Whether a token of the warp makes states
  // grow. Calls `out_of_reach` where lengths differ too much (in_reach): then K K^T is made again.
  template <class OutOfReach>
  __device__ __forceinline__ bool store(const float (&product)[32], float held, bool mild,
                                        bool normalised, OutOfReach&& out_of_reach) const {
    const DiagonalBlock y = diagonal_block(product, thread >> 5);
    const float2 beta = of_rows(reinterpret_cast<const float*>(gates[1]), thread);
    const float2 lengths = key_squares(y, thread & 31);
    float2 squares = make_float2(1.0f, 1.0f);  // over those of the keys' lengths
    float key = 1.0f;
    if (normalised) {
      const float own = thread & 1 ? lengths.y : lengths.x;
      key = over_root(own + a.eps);
      if (!in_reach(own, key)) out_of_reach();
      squares = make_float2(over(lengths.x + a.eps), over(lengths.y + a.eps));
    }
    put_key_factors(held, key, masks, factors, thread);
    store_diagonal(y, mild, make_float2(beta.x * squares.x, beta.y * squares.y), gates, scratch,
                   thread);
    const float2 rows = mild ? beta : of_rows(masks.block_l, thread);
    store_lower(product, mild, make_float2(rows.x * squares.x, rows.y * squares.y), masks, scratch,
                thread);
    return grows(beta, make_float2(lengths.x * squares.x, lengths.y * squares.y));
  }

  // The same with normalised columns.
  __device__ __forceinline__ bool store_normalised(float (&product)[32], float held,
                                                   bool mild) const {
    const float2 lengths = key_squares(diagonal_block(product, thread >> 5), thread & 31);
    const float2 keys = make_float2(over_root(lengths.x + a.eps), over_root(lengths.y + a.eps));
    const float key = thread & 1 ? keys.y : keys.x;
    masks.key[factor_token(thread)] = key;
    put_key_factors(held, makes_masks(thread) ? 1.0f : key, masks, factors, thread);
    sync();
    normalise_columns(product, masks, thread);
    const float2 beta = of_rows(reinterpret_cast<const float*>(gates[1]), thread);
    store_diagonal(diagonal_block(product, thread >> 5), mild,
                   make_float2(beta.x * keys.x, beta.y * keys.y), gates, scratch, thread);
    const float2 rows = mild ? beta : of_rows(masks.block_l, thread);
    store_lower(product, mild, make_float2(rows.x * keys.x, rows.y * keys.y), masks, scratch,
                thread);
    return grows(beta, make_float2(lengths.x * keys.x * keys.x, lengths.y * keys.y * keys.y));
  }
};

template <class Sync>
__device__ __forceinline__ LowerPart<Sync> make_lower_part(const FusedArguments& a,
                                                           const std::uint32_t (&gates)[2][64],
                                                           MaskFactors& masks, Factors& factors,
                                                           InverseScratch& scratch, int thread,
                                                           Sync sync) {
  return {a, gates, masks, factors, scratch, thread, sync};
}

}  // namespace hyla::gdn
