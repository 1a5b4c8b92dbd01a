// Chunked prefill in one kernel, K = V = 128: two warpgroups hold the state, two make what does not
// depend on it, and all data come and go by the copy engine. README.md has the schedule.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/fused_auxiliary.cuh"
#include "ops/gdn_prefill/fused_state.cuh"

namespace hyla::gdn {

inline constexpr int kFusedThreads = 512;
inline constexpr int kStateRegisters = 192, kAuxiliaryRegisters = 64;

// grid: one CTA an SM, or as many as there are tasks
template <class Io>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  FusedShared<Io>& s = *reinterpret_cast<FusedShared<Io>*>(memory);
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (threadIdx.x == 0) init_barriers(s);
  // The blocks above the diagonal of T' and P are zero and stay so.
  auto* prepared = reinterpret_cast<uint4*>(&s.prepared);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(s.prepared) / 16);
       i += kFusedThreads) {
    prepared[i] = make_uint4(0, 0, 0, 0);
  }
  arch::fence_async_proxy();
  arch::wait_for_previous_grid();
  rank_rows(a.p, s.ranked, reinterpret_cast<int*>(&s.keys));
  arch::fence_async_proxy();
  __syncthreads();
  if (group < 2) {
    arch::take_registers<kStateRegisters>();
    FusedState<Io>(s, a, group).run();
  } else {
    arch::give_registers<kAuxiliaryRegisters>();
    Auxiliary<Io>(s, a).run();
  }
}

}  // namespace hyla::gdn
