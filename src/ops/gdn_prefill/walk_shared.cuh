// Shared memory of the kernel that walks for states only: that of the fused kernel without Q, P and
// O (fused_shared.cuh), whose barriers it has.
#pragma once

#include "arch/mbarrier_end.cuh"
#include "ops/gdn_prefill/fused_shared.cuh"
#include "ops/gdn_prefill/walk_list.cuh"

namespace hyla::gdn {

template <class Io>
struct WalkShared {
  static constexpr bool kOutputs = false;
  alignas(1024) KeyTiles<Io> keys[kKeyStages];  // where Q would be, nothing is
  Io values[kValueStages][2][kTile];
  Io zeros[kTile];                         // V of M
  Io prepared[kPreparedStages][1][kTile];  // T'
  InverseScratch scratch[2];
  MaskFactors masks[2];
  Factors factors[kFactorStages];
  std::uint32_t gates[2][2][2][64];
  ChunkInfo chunks[2][4];
  WalkCursor cursors[2];
  WalkList walks;
  bool again;
  arch::Mbarrier keys_full[kKeyBarriers], keys_empty[kKeyStages];
  arch::Mbarrier values_full[kValueStages], values_empty[kValueStages];
  arch::Mbarrier inverse_full[kPreparedStages], inverse_empty[kPreparedStages];
  arch::Mbarrier factors_full[kFactorStages];
  arch::Mbarrier met;  // all warps, twice a pass over the list
};
static_assert(sizeof(WalkShared<std::uint16_t>) <= 232448);

// Before the barriers are initialised again; by one thread, when nobody uses them.
template <class Io>
__device__ __forceinline__ void end_barriers(WalkShared<Io>& s) {
  const auto end = [](auto& barriers) {
    for (arch::Mbarrier& barrier : barriers) arch::invalidate(barrier);
  };
  end(s.keys_full), end(s.keys_empty), end(s.values_full), end(s.values_empty);
  end(s.inverse_full), end(s.inverse_empty), end(s.factors_full);
}

}  // namespace hyla::gdn
