// The serial part of prefill for K above 128: a CTA has 64 value rows of one part of one head of one
// sequence.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/state_pool.cuh"
#include "ops/gdn_prefill/wide_chain.cuh"

namespace hyla::gdn {

// Where the sequence ends inside the chunk, the rows past it are made zeros first.
template <class Io>
__device__ __forceinline__ void clear_tail(WideShared<Io>& s, const WideChain<Io>& chain, int n,
                                           int rows) {
  if (rows == kChunk) return;
  const WidePipe<Io> pipe{s};
  pipe.wait_keys(n);
  pipe.wait_rest(n);
  const int thread = chain.thread();
  auto& keys = s.keys[serial_stage(n).stage];
  clear_rows(keys[0], keys[1], rows, thread);
  clear_rows(keys[2], keys[3], rows, thread);
  clear_rows(s.rest[n & 1].values, s.rest[n & 1].values, rows, thread);
  chain.sync();
}

template <class Io>
__device__ __forceinline__ void walk_wide_part(WideShared<Io>& s, const FusedArguments& a,
                                               const SerialTask& task, int part) {
  WideChain<Io> chain(s, task.block, 1);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  const int chunks = task.chunks();
  const int from = first_chunk(a, chunks, part), to = first_chunk(a, chunks, part + 1);
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
  load_initial(a.p, task.row, place, chain.S);
  chain.begin();
  int n = 0;
#pragma unroll 1
  for (; n < from; ++n) {
    chain.template chunk<Walk::kState>(n, n, true, target);  // never the last chunk
  }
  const int every = chunks_to_checkpoint(a.p);
  int until_checkpoint = every - from % every;
#pragma unroll 1
  for (; n < to; ++n) {
    clear_tail(s, chain, n, task.rows(n));
    chain.template chunk<Walk::kOutputs>(n, n, n == from, target);
    if (--until_checkpoint == 0) {
      until_checkpoint = every;
      const int tokens = (n + 1) * kChunk;
      if (tokens <= task.length) store_checkpoint(a.p, task.row, tokens, place, chain.S);
    }
  }
  if (to > from) chain.store_last_out(n - 1, n - 1, task.rows(n - 1), target);
  // Who has the last chunk, or stands for a sequence without any.
  if (to == chunks && (to > from || part == 0)) store_final(a.p, task.row, place, chain.S);
  chain.finish();
}

// grid (heads of sequences, blocks of value rows, parts)
template <class Io>
__global__ void __launch_bounds__(serial_threads(1), 1)
    serial_wide(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<WideShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s);
  __syncthreads();
  arch::wait_for_previous_grid();
  const int part = static_cast<int>(blockIdx.z);
  SerialTask task;
  if (!find_serial_task(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), task)) {
    return;
  }
  const int from = first_chunk(a, task.chunks(), part);
  const int to = first_chunk(a, task.chunks(), part + 1);
  if (part > 0 && from == to) return;  // the sequence is shorter
  if (threadIdx.x >= 128) return walk_wide_part(s, a, task, part);
  if (threadIdx.x != 0) return;
  feed<Io, Walk::kState>(s, a, task, 0, from, 0);
  feed<Io, Walk::kOutputs>(s, a, task, from, to, from);
}

}  // namespace hyla::gdn
