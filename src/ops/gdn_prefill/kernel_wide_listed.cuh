// The same for K above 128: as kernel_serial_wide.cuh with one part, in the steps of
// listed_steps.cuh.
#pragma once

#include "ops/gdn_prefill/kernel_serial_wide.cuh"
#include "ops/gdn_prefill/listed_steps.cuh"

namespace hyla::gdn {

// By one thread.
template <class Io>
__device__ __forceinline__ void feed_listed(WideShared<Io>& s, const FusedArguments& a,
                                            const SerialTask& task) {
  const auto load = [&](int n, int c, const ChunkInfo& info, const Record<Io>* record) {
    const int token = task.begin + c * kChunk, stage = n & 1;
    wait_place(s.keys_empty, n);
    load_wide_tiles(s.keys[stage], a.maps.k, info.k_head, token, s.keys_full[stage]);
    if (record != nullptr) {
      wait_place(s.queries_empty, c);
      load_wide_tiles(s.queries[c & 1], a.maps.q, info.q_head, token, s.queries_full[c & 1]);
    }
    wait_place(s.rest_empty, n);
    arch::Mbarrier& full = s.rest_full[stage];
    auto& rest = s.rest[stage];
    constexpr std::uint32_t kWhole = 3 * kTileBytes + sizeof(Factors);
    arch::arrive_expecting(full, record != nullptr ? kWhole : kTileBytes);
    arch::load_tile(rest.values, a.maps.v, {task.block * 64, info.v_head, token}, full);
    if (record == nullptr) return;
    arch::load_bulk(rest.prepared, record->inverse, 2 * kTileBytes, full);
    arch::load_bulk(&s.factors[stage], &record->factors, sizeof(Factors), full);
  };
  feed_listed<Io>(a, task, load);
}

template <class Io>
__device__ __forceinline__ void walk_listed(WideShared<Io>& s, const FusedArguments& a,
                                            const SerialTask& task) {
  constexpr int kBarrier = 1;
  static_assert(sizeof(PartScratch) <= sizeof(s.state));
  WideChain<Io> chain(s, task.block, kBarrier);
  const auto at = [&] { return FragmentPlace{task.head, chain.value_row(), chain.column()}; };
  const auto keep = [&](int index) {
    if constexpr (kMaySpoil<Io>) spoil_rows(chain.S[0], chain.S[1]);
    store_checkpoint(a.p, task.row, index, at(), chain.S);
  };
  load_initial(a.p, task.row, at(), chain.S);
  chain.begin();
  Steps<volatile int> steps(a.p, task.row, task.length);
#pragma unroll 1
  for (int n = 0; steps.next(keep); ++n) {
    const int c = steps.chunk;
    clear_tail(s, chain, n, steps.part > 0 ? steps.part : task.rows(c));
    if (steps.part == 0) {
      chain.template chunk<Walk::kOutputs>(n, c);
      continue;
    }
    // The state, while the part is walked over; and there are no registers for it while T' is made.
    volatile float before[2][64];
    const auto put_back = [&] {
#pragma unroll
      for (int i = 0; i < 64; ++i) chain.S[0][i] = before[0][i], chain.S[1][i] = before[1][i];
      chain.begin();
    };
#pragma unroll
    for (int i = 0; i < 64; ++i) before[0][i] = chain.S[0][i], before[1][i] = chain.S[1][i];
    // What is made goes through the place of S, when the outputs of the chunk before have read it.
    if (c > 0) arch::wait(s.state_empty, (c - 1) & 1);
    auto& scratch = *reinterpret_cast<PartScratch*>(&s.state);
    make_part<kWideTiles, 1>(a, task.head, task.begin + c * kChunk, steps.part, s.keys[n & 1][0],
                             scratch, s.factors[n & 1], s.rest[n & 1].prepared[0], kBarrier,
                             chain.thread());
    put_back();
    chain.template chunk<Walk::kState>(n, 0);
    keep(steps.kept - 1);
    put_back();
  }
  end_walk<Io>(a, task, at(), chain.S, true, task.length);
}

template <class Io>
__device__ __forceinline__ void make_listed_outputs(WideShared<Io>& s, const FusedArguments& a,
                                                    const SerialTask& task) {
  WideOutputs<Io> outputs(s, task.block, 2);
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
  ListedSteps steps(a.p, task.row, task.length);
#pragma unroll 1
  for (int n = 0; steps.next(); ++n) {
    const int c = steps.chunk;
    if (steps.part == 0) outputs.chunk(n, c, c, task.rows(c), target);
  }
  outputs.finish();
  if constexpr (kMaySpoil<Io>) meet_outputs();
}

// grid (heads of sequences, blocks of value rows)
template <class Io>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_listed(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<WideShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s);
  __syncthreads();
  arch::wait_for_previous_grid();
  SerialTask found;
  if (!find_serial_task(RecordRows{a, nullptr}, static_cast<int>(blockIdx.x),
                        static_cast<int>(blockIdx.y), found)) {
    return;
  }
  __shared__ SerialTask task;  // registers are scarce
  if (threadIdx.x == 0) task = found;
  __syncthreads();
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (group == 1) {
    arch::take_registers<248>();
    walk_listed(s, a, task);
  } else if (group == 2) {
    arch::give_registers<128>();
    make_listed_outputs(s, a, task);
  } else {
    arch::give_registers<120>();  // the list takes more than tiles alone
    if (threadIdx.x == 0) feed_listed<Io>(s, a, task);
  }
}

}  // namespace hyla::gdn
