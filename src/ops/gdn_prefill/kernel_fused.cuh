// Chunked prefill in one kernel, K = V = 128: two warpgroups hold the state, two make what does not
// depend on it, and all data come and go by the copy engine. README.md has the schedule.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/fused_auxiliary.cuh"
#include "ops/gdn_prefill/fused_state.cuh"

namespace hyla::gdn {

inline constexpr int kFusedThreads = 512;
inline constexpr int kStateRegisters = 192, kAuxiliaryRegisters = 64;

// grid: one CTA an SM, or as many as there are tasks. Where sequences may be long enough for
// kernels of their own (long_rows.cuh), two instances run behind these, one of which ends at once:
// Longs if there are such sequences, the other one if not.
template <class Io, bool Normalised, bool Longs>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  FusedShared<Io>& s = *reinterpret_cast<FusedShared<Io>*>(memory);
  const int thread = own_thread();
  const int group = static_cast<int>(arch::uniform(static_cast<std::uint32_t>(thread >> 7)));
  if (thread == 0) init_fused_barriers(s);
  if (thread == 32) {
    for (const CUtensorMap* map : {&a.maps.k, &a.maps.q, &a.maps.v, &a.maps.out}) {
      arch::prefetch_map(*map);
    }
    if (a.final_tiles) arch::prefetch_map(a.maps.final);
  }
  // A grid before that works on long sequences has waited for what this one reads.
  if constexpr (!Longs) arch::wait_for_previous_grid();
  if (Longs || a.long_rows > 0) {
    if ((__ldcg(&a.longs->count) > 0) != Longs) {
      if constexpr (Longs) arch::wait_for_previous_grid();
      return;
    }
  }
  const OwnRow own(a.p);
  // Of one sequence the first task is known before its length is.
  if (a.dense_states && a.p.sequences.rows == 1 && (thread & 127) == 64 && group < 2) {
    const int slot = find_slots(a.p, 0).from;
    if (slot >= 0) prefetch_initial(a.p, slot, static_cast<int>(blockIdx.x), group);
  }
  // The blocks above the diagonal of T' and P are zero and stay so.
  auto* prepared = reinterpret_cast<uint4*>(&s.prepared);
  for (int i = thread; i < static_cast<int>(sizeof(s.prepared) / 16); i += kFusedThreads) {
    prepared[i] = make_uint4(0, 0, 0, 0);
  }
  if constexpr (Longs) {
    if (thread == 64) leave_long_rows(a, s.ranked);
  }
  rank_rows(a.p, own, s.ranked, reinterpret_cast<int*>(&s.keys));
  arch::fence_async_proxy();
  __syncthreads();
  if (group < 2) {
    arch::take_registers<kStateRegisters>();
    FusedState<Io, Longs>(s, a, group).run();
  } else {
    arch::give_registers<kAuxiliaryRegisters>();
    Auxiliary<Io, Normalised, Longs>(s, a).run();
    // Whoever waits for this grid waits for the long sequences, too.
    if constexpr (Longs) arch::wait_for_previous_grid();
  }
}

}  // namespace hyla::gdn
