// The copies that bring a chunk into shared memory, and the end of a sequence: rows past it belong
// to another one, or to nobody, and become zeros.
#pragma once

#include "arch/tma.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

// K, and Q with Queries.
template <bool Queries, class Io>
__device__ __forceinline__ void load_key_tiles(KeyTiles<Io>& to, const FusedMaps& maps,
                                               const ChunkInfo& chunk, arch::Mbarrier& full) {
  arch::arrive_expecting(full, (Queries ? 4 : 2) * kTileBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    arch::load_tile(to[2 * half], maps.k, {half * 64, chunk.k_head, chunk.token}, full);
    if constexpr (Queries) {
      arch::load_tile(to[2 * half + 1], maps.q, {half * 64, chunk.q_head, chunk.token}, full);
    }
  }
}

template <class Io>
__device__ __forceinline__ void load_value_tiles(Io (&to)[2][kTile], const FusedMaps& maps,
                                                 const ChunkInfo& chunk, arch::Mbarrier& full) {
  arch::arrive_expecting(full, 2 * kTileBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    arch::load_tile(to[half], maps.v, {half * 64, chunk.v_head, chunk.token}, full);
  }
}

// Rows from `first` on of two tiles, by 128 threads. A row is 128 bytes wherever the swizzle puts
// its chunks.
template <class Io>
__device__ __forceinline__ void clear_rows(Io* tile, Io* other, int first, int thread) {
#pragma unroll 1
  for (int i = thread; i < (64 - first) * 16; i += 128) {
    Io* to = (i & 8 ? other : tile) + (first + (i >> 4)) * 64;
    reinterpret_cast<uint4*>(to)[i & 7] = make_uint4(0, 0, 0, 0);
  }
  arch::fence_async_proxy();
}

}  // namespace hyla::gdn
