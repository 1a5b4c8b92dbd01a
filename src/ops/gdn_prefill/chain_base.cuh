// What the chains over chunks have in common: one warpgroup holds S^T of 64 value rows, float32, in
// its accumulators, and multiplies it by the keys and queries of a chunk.
#pragma once

#include "ops/gdn_prefill/out_tiles.cuh"
#include "ops/gdn_prefill/token_products.cuh"

namespace hyla::gdn {

// What a walk over chunks is for.
enum class Walk {
  kOutputs,   // outputs and state
  kState,     // the state only: Q, P and O are left out
  kTransfer,  // the same with V = 0: what becomes of an initial state
};

template <class Io, class Pipe>
class ChainBase : public OutTiles<Io> {
 public:
  // `out`: two tiles of the warpgroup's own; `barrier`: a number that nobody else uses.
  __device__ __forceinline__ ChainBase(const Pipe& with, Io (*out_tiles)[kTile], int value_half,
                                       int own_barrier)
      : OutTiles<Io>(out_tiles, value_half, own_barrier), pipe(with) {
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] = x[i] = 0.0f;
  }

  // First key of the thread's fragment.
  __device__ __forceinline__ int column() const { return 2 * (this->thread() & 3); }

  // S after chunk n - 1 (OutTiles::store_state).
  template <class Left>
  __device__ __forceinline__ void store_final_tiles(int n, const CUtensorMap& map, int head,
                                                    int slot, Left left) {
    this->store_state(S, n, map, head, slot, left);
  }
  __device__ __forceinline__ void store_final_tiles(int n, const CUtensorMap& map, int head,
                                                    int slot) {
    store_final_tiles(n, map, head, slot, [](int) {});
  }

  float S[64];

 protected:
  __device__ __forceinline__ void pack_state() {
#pragma unroll
    for (int i = 0; i < 32; ++i) state[i] = pack<Io>(S[2 * i], S[2 * i + 1]);
  }

  // d = S^T, as it was packed, times the transpose of K or Q
  __device__ __forceinline__ void multiply_state(float (&d)[32], std::uint32_t address) {
    const arch::WgmmaDescriptor right = arch::descriptor(address);
    arch::pin(state);
    arch::pin(d);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      arch::wgmma_rs<Io, 64>(d, state + 4 * i,
                             right + (i & 3) * 2 + (i >> 2) * (2 * kTileBytes >> 4), i > 0);
    }
    arch::wgmma_commit();
  }

  // S += left K
  __device__ __forceinline__ void update(std::uint32_t (&left)[16], std::uint32_t address) {
    const arch::WgmmaDescriptor keys = arch::descriptor(address, 2 * kTileBytes);
    arch::pin(left);
    arch::pin(S);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      arch::wgmma_rs<Io, 128, true>(S, left + 4 * i, keys + 128 * i, true);
    arch::wgmma_commit();
  }

  const Pipe pipe;
  float x[32], o[32];
  std::uint32_t state[32];  // S as a left operand
};

}  // namespace hyla::gdn
