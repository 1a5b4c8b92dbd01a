// What each segment makes of its initial state (segments.cuh): a CTA has one half of the rows of N
// or of M of one segment. Two CTAs share a multiprocessor.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/serial_feed.cuh"
#include "ops/gdn_prefill/state_pool.cuh"

namespace hyla::gdn {

// Of a grid's z: N of segments 0 ... parts - 2, then M of segments 1 ... parts - 2.
struct TransferItem {
  int segment;
  bool matrix;  // M
};
__device__ __forceinline__ TransferItem transfer_item(const FusedArguments& a, int z) {
  return z < a.parts - 1 ? TransferItem{z, false} : TransferItem{z - (a.parts - 1) + 1, true};
}

template <class Io>
__device__ __forceinline__ void walk_transfer(TransferShared<Io>& s, const FusedArguments& a,
                                              const SerialTask& task, const TransferItem& item,
                                              int from, int to) {
  using Pipe = SerialPipe<decltype(s.ring)>;
  const Pipe pipe{s.ring};
  StateChain<Io, Pipe> chain(pipe, nullptr, task.half, 1);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  const OutTarget none{a.maps.out, a.p.out, task.head, task.begin};
  const int pair = task.row * static_cast<int>(a.p.heads) + task.head;
  if (item.matrix) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int v = place.v + (i >> 1 & 1) * 8, k = place.k + (i >> 2) * 8 + (i & 1);
      chain.S[i] = v == k ? 1.0f : 0.0f;
    }
#pragma unroll 1
    for (int c = from; c < to; ++c) chain.template chunk<Walk::kTransfer>(c - from, c, true, none);
    store_state(as_pool(segment_matrix(a, pair, item.segment)), 0, {0, place.v, place.k}, chain.S);
    return;
  }
  if (item.segment == 0) {
    load_initial(a.p, task.row, place, chain.S);
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) chain.S[i] = 0.0f;
  }
#pragma unroll 1
  for (int c = from; c < to; ++c) chain.template chunk<Walk::kState>(c - from, c, true, none);
  store_state(as_pool(segment_state(a, pair, item.segment)), 0, {0, place.v, place.k}, chain.S);
}

// grid (2, heads of sequences, 2 parts - 3)
template <class Io>
__global__ void __launch_bounds__(kSerialThreads, 2)
    transfer(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  TransferShared<Io>& s = *reinterpret_cast<TransferShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s.ring);
  __syncthreads();
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  SerialTask task;
  if (!find_serial_task(a, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), task)) {
    return;
  }
  const TransferItem item = transfer_item(a, static_cast<int>(blockIdx.z));
  const int from = first_chunk(a, task.chunks(), item.segment);
  const int to = first_chunk(a, task.chunks(), item.segment + 1);
  if (to == task.chunks()) return;  // nobody starts after it
  if (arch::uniform(threadIdx.x >> 7) == 1) {
    arch::take_registers<208>();
    walk_transfer(s, a, task, item, from, to);
  } else {
    arch::give_registers<40>();
    if (threadIdx.x != 0) return;
    if (item.matrix) {
      feed<Io, Walk::kTransfer>(s.ring, a, task, from, to, 0);
    } else {
      feed<Io, Walk::kState>(s.ring, a, task, from, to, 0);
    }
  }
}

}  // namespace hyla::gdn
