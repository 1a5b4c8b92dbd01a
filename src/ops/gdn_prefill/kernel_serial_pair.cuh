// The serial part of prefill for K above 128 with all multiprocessors busy: a CTA has two blocks of
// 64 value rows of one head of one sequence.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/kernel_serial_wide.cuh"
#include "ops/gdn_prefill/pair_chain.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/state_pool.cuh"
#include "ops/gdn_prefill/walk_order.cuh"

namespace hyla::gdn {

// Where the sequence ends inside the chunk, the rows past it are made zeros first. Both warpgroups
// clear all keys, with the same zeros.
template <class Io>
__device__ __forceinline__ void clear_tail(PairShared<Io>& s, const PairChain<Io>& chain, int n,
                                           int rows, int block) {
  if (rows == kChunk) return;
  wait_stage(s.keys_full, n);
  wait_stage(s.rest_full, n);
  auto& keys = s.keys[n & 1];
  Io* values = s.rest[n & 1].values[block];
  clear_rows(keys[0], keys[1], rows, chain.thread());
  clear_rows(keys[2], keys[3], rows, chain.thread());
  clear_rows(values, values, rows, chain.thread());
  chain.sync();
}

template <class Io>
__device__ __forceinline__ void walk_pair(PairShared<Io>& s, const FusedArguments& a,
                                          const SerialTask& task, int block) {
  PairChain<Io> chain(s, task.block, block);
  const auto place = [&] { return FragmentPlace{task.head, chain.value_row(), chain.column()}; };
  const auto target = [&] {
    return OutTarget{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
  };
  load_initial(a.p, task.row, place(), chain.S);
  const int every = chunks_to_checkpoint(a.p), chunks = task.chunks();
  int until_checkpoint = every;
#pragma unroll 1
  for (int n = 0; n < chunks; ++n) {
    clear_tail(s, chain, n, task.rows(n), block);
    chain.chunk(n, target());
    if (--until_checkpoint == 0) {
      until_checkpoint = every;
      const int tokens = (n + 1) * kChunk;
      if (tokens <= task.length) {
        if constexpr (kMaySpoil<Io>) spoil_rows(chain.S[0], chain.S[1]);
        store_checkpoint(a.p, task.row, (n + 1) / every - 1, place(), chain.S);
      }
    }
  }
  if (chunks > 0) chain.store_last_out(chunks - 1, chunks - 1, task.rows(chunks - 1), target());
  SpoiltRows spoilt;
  if constexpr (kMaySpoil<Io>) {
    if (chunks > 0) spoilt = spoil_rows(chain.S[0], chain.S[1]);
    if (chain.any(spoilt.any())) chain.mark(spoilt, task.length, target());
  }
  store_final(a.p, task.row, place(), chain.S, spoilt);
  chain.finish();
}

// grid (heads of sequences, pairs of blocks of value rows)
template <class Io>
__global__ void __launch_bounds__(kWideThreads, 1)
    serial_pair(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<PairShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s);
  __syncthreads();
  const WalkPlace place = a.ordered ? ordered_place(a, s.out) : unordered_place();
  arch::wait_for_previous_grid();
  SerialTask found;
  if (!find_serial_task(RecordRows{a, nullptr}, place.pair, 2 * place.block, found)) return;
  __shared__ SerialTask shared_task;  // where registers are scarce
  if constexpr (kMaySpoil<Io>) {
    if (threadIdx.x == 0) shared_task = found;
    __syncthreads();
  }
  const SerialTask& task = kMaySpoil<Io> ? shared_task : found;
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (group > 0) {
    arch::take_registers<240>();
    walk_pair(s, a, task, group - 1);
  } else {
    arch::give_registers<24>();
    if (threadIdx.x == 0) feed(s, a, task);
  }
}

}  // namespace hyla::gdn
