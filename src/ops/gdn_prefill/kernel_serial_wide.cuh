// The serial part of prefill for K above 128: a CTA has 64 value rows of one part of one head of
// one sequence. A warpgroup goes from state to state, another one makes the outputs, a thread
// loads.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/start_order.cuh"
#include "ops/gdn_prefill/state_pool.cuh"
#include "ops/gdn_prefill/walk_order.cuh"
#include "ops/gdn_prefill/wide_chain.cuh"

namespace hyla::gdn {

inline constexpr int kWideThreads = 3 * 128;

// All outputs of the task are in memory: a barrier of whoever makes them and whoever has the state.
// Only where rows may be spoilt.
__device__ __forceinline__ void meet_outputs() { arch::sync_threads(3, 2 * 128); }

// The end of a walk: the final state, but for rows that are spoilt, which are marked. `ends`: is
// it the end of the sequence? `end`: tokens up to there; 0: none were walked over.
template <class Io>
__device__ __forceinline__ void end_walk(const FusedArguments& a, const SerialTask& task,
                                         const FragmentPlace& place, float (&S)[2][64], bool ends,
                                         int end) {
  SpoiltRows spoilt;
  if constexpr (kMaySpoil<Io>) {
    if (end > 0) spoilt = spoil_rows(S[0], S[1]);
    meet_outputs();
    const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
    mark_last(spoilt, end, place.v, static_cast<int>(threadIdx.x) & 31, target);
  }
  if (ends) store_final(a.p, task.row, place, S, spoilt);
}

// Where the sequence ends inside the chunk, the rows past it are made zeros first.
template <class Io>
__device__ __forceinline__ void clear_tail(WideShared<Io>& s, const WideChain<Io>& chain, int n,
                                           int rows) {
  if (rows == kChunk) return;
  wait_stage(s.keys_full, n);
  wait_stage(s.rest_full, n);
  auto& keys = s.keys[n & 1];
  clear_rows(keys[0], keys[1], rows, chain.thread());
  clear_rows(keys[2], keys[3], rows, chain.thread());
  clear_rows(s.rest[n & 1].values, s.rest[n & 1].values, rows, chain.thread());
  chain.sync();
}

// Chunks [0, from) for the state only, then to `to` with outputs.
template <class Io>
__device__ __forceinline__ void walk_states(WideShared<Io>& s, const FusedArguments& a,
                                            const SerialTask& task, int from, int to, int part) {
  WideChain<Io> chain(s, task.block, 1);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  load_initial(a.p, task.row, place, chain.S);
  chain.begin();
  const int pair = static_cast<int>(blockIdx.x);
  if (a.order != nullptr && part == 0) {
    chain.sync();
    if (chain.thread() == 0) say_started(a, pair, task.block);
  }
  int n = 0;
#pragma unroll 1
  for (; n < from; ++n) chain.template chunk<Walk::kState>(n, 0);  // never the last chunk
  const int every = chunks_to_checkpoint(a.p);
  int until_checkpoint = every - from % every;
#pragma unroll 1
  for (; n < to; ++n) {
    clear_tail(s, chain, n, task.rows(n));
    chain.template chunk<Walk::kOutputs>(n, n - from);
    if (--until_checkpoint == 0) {
      until_checkpoint = every;
      const int tokens = (n + 1) * kChunk;
      if (tokens <= task.length) {
        if constexpr (kMaySpoil<Io>) spoil_rows(chain.S[0], chain.S[1]);
        store_checkpoint(a.p, task.row, (n + 1) / every - 1, place, chain.S);
      }
    }
  }
  // Who has the last chunk, or stands for a sequence without any.
  const bool ends = to == task.chunks() && (to > from || part == 0);
  if (a.order != nullptr && ends && part > 0) wait_for_start(a, pair, task.block);
  end_walk<Io>(a, task, place, chain.S, ends, to > from ? min(task.length, to * kChunk) : 0);
}

template <class Io>
__device__ __forceinline__ void make_outputs(WideShared<Io>& s, const FusedArguments& a,
                                             const SerialTask& task, int from, int to) {
  WideOutputs<Io> outputs(s, task.block, 2);
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
#pragma unroll 1
  for (int n = from; n < to; ++n) outputs.chunk(n, n - from, n, task.rows(n), target);
  outputs.finish();
  if constexpr (kMaySpoil<Io>) meet_outputs();
}

// grid (heads of sequences, blocks of value rows, parts)
template <class Io>
__global__ void __launch_bounds__(kWideThreads, 1)
    serial_wide(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<WideShared<Io>*>(memory);
  if (threadIdx.x == 0) {
    init_barriers(s);
    s.part = take_part(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  }
  __syncthreads();
  const WalkPlace place = a.ordered ? ordered_place(a, s.update) : unordered_place();
  arch::wait_for_previous_grid();
  const int part = s.part;
  SerialTask task;
  if (!find_serial_task(RecordRows{a, nullptr}, place.pair, place.block, task)) return;
  const int from = first_chunk(a, task.chunks(), part);
  const int to = first_chunk(a, task.chunks(), part + 1);
  if (part > 0 && from == to) return;  // the sequence is shorter
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (group == 1) {
    arch::take_registers<240>();
    walk_states(s, a, task, from, to, part);
  } else if (group == 2) {
    arch::give_registers<112>();
    make_outputs(s, a, task, from, to);
  } else {
    arch::give_registers<40>();
    if (threadIdx.x != 0) return;
    feed<Io, Walk::kState>(s, a, task, 0, from, 0);
    feed<Io, Walk::kOutputs>(s, a, task, from, to, from);
  }
}

}  // namespace hyla::gdn
