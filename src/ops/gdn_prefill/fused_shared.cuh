// Shared memory of the fused kernel and the barriers that hand its parts over.
#pragma once

#include "arch/mbarrier.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/fused_tasks.cuh"

namespace hyla::gdn {

inline constexpr int kKeyStages = 3;
// Two for the full ones of each stage, in turns. An auxiliary warpgroup has every second chunk: with
// one it would wait for a phase while that of the other warpgroup's chunk before it may not have
// ended yet, and a wait takes the phase before that one for its own.
inline constexpr int kKeyBarriers = 2 * kKeyStages;
inline constexpr int kValueStages = 2;
inline constexpr int kOutStages = 2;
inline constexpr int kPreparedStages = 2;
inline constexpr int kFactorStages = 4;

template <class Io>
struct FusedShared {
  static constexpr bool kOutputs = true;
  alignas(1024) KeyTiles<Io> keys[kKeyStages];
  Io values[kValueStages][2][kTile];
  Io out[2][kOutStages][kTile];            // of each half of V
  Io prepared[kPreparedStages][2][kTile];  // T', P
  InverseScratch scratch[2];
  MaskFactors masks[2];
  Factors factors[kFactorStages];
  // Of each auxiliary warpgroup, two chunks: gate and beta words, then g and beta.
  std::uint32_t gates[2][2][2][64];
  ChunkInfo chunks[2][4];
  ChunkCursor cursors[2];
  StateTask tasks[2][2];  // of each state warpgroup, the current one and the next
  RankedRows ranked;
  arch::Mbarrier keys_full[kKeyBarriers], keys_empty[kKeyStages];
  arch::Mbarrier values_full[kValueStages], values_empty[kValueStages];
  arch::Mbarrier inverse_full[kPreparedStages], inverse_empty[kPreparedStages];
  arch::Mbarrier scores_full[kPreparedStages], scores_empty[kPreparedStages];
  arch::Mbarrier factors_full[kFactorStages];
};

static_assert(sizeof(FusedShared<std::uint16_t>) <= 232448);

// By one thread, before a barrier of the CTA. Warps arrive, not threads: 8 warps hold the state, 4
// make a chunk's matrices.
template <class Shared>
__device__ __forceinline__ void init_fused_barriers(Shared& s) {
  constexpr int kStateWarps = 8, kAuxiliaryWarps = 4;
  for (int i = 0; i < kKeyBarriers; ++i) arch::init(s.keys_full[i], 1);
  for (int i = 0; i < kKeyStages; ++i) {
    arch::init(s.keys_empty[i], kStateWarps + kAuxiliaryWarps);
  }
  for (int i = 0; i < kValueStages; ++i) {
    arch::init(s.values_full[i], 1);
    arch::init(s.values_empty[i], kStateWarps);
  }
  for (int i = 0; i < kPreparedStages; ++i) {
    arch::init(s.inverse_full[i], kAuxiliaryWarps);
    arch::init(s.inverse_empty[i], kStateWarps);
    if constexpr (Shared::kOutputs) {
      arch::init(s.scores_full[i], kAuxiliaryWarps);
      arch::init(s.scores_empty[i], kStateWarps);
    }
  }
  for (int i = 0; i < kFactorStages; ++i) {
    arch::init(s.factors_full[i], kAuxiliaryWarps);
  }
  arch::fence_mbarrier_init();
}

// Where the keys of chunk n lie.
struct KeyStage {
  std::uint32_t stage, use;  // of the stage

  __device__ __forceinline__ std::uint32_t empty_parity() const { return use & 1; }
  __device__ __forceinline__ std::uint32_t full() const { return stage + kKeyStages * (use & 1); }
  __device__ __forceinline__ std::uint32_t full_parity() const { return use >> 1 & 1; }
};
__device__ __forceinline__ KeyStage key_stage(std::uint32_t n) {
  static_assert(kKeyStages == 3);
  const std::uint32_t use = __umulhi(n, 0xaaaaaaabu) >> 1;  // n / 3
  return {n - 3 * use, use};
}

}  // namespace hyla::gdn
