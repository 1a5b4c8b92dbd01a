// The serial part of prefill over prepared chunks (kernel_prepare.cuh): a CTA has one or two blocks
// of 64 value rows of one part of one head of one sequence (segments.cuh). Two blocks share
// everything but V and O, and fill the gaps in each other's chains.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/registers.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/serial_feed.cuh"
#include "ops/gdn_prefill/start_order.cuh"
#include "ops/gdn_prefill/state_pool.cuh"
#include "ops/gdn_prefill/walk_order.cuh"

namespace hyla::gdn {

template <class Io, int Blocks>
__device__ __forceinline__ void walk_part(SerialShared<Io, Blocks>& s, const FusedArguments& a,
                                          const SerialTask& task, int part, int block) {
  using Pipe = SerialPipe<decltype(s.ring)>;
  const Pipe pipe{s.ring, block};
  SerialChain<Io, Pipe> chain(pipe, s.out[block], task.block + block, 1 + block);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  const int chunks = task.chunks();
  const int from = first_chunk(a, chunks, part, task.parts);
  const int to = first_chunk(a, chunks, part + 1, task.parts);
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
  // The keys of chunk c, if it is one of these.
  const auto ask = [&](int n, int c) {
    if (c >= to) return;
    pipe.wait_keys(n);
    clear_tail(pipe, chain, n, task.rows(c));
  };
  const int pair = static_cast<int>(blockIdx.x);
  int n = 0;
  if (part == 0 || !a.transfers) {
    load_initial<true>(a.p, task.row, place, chain.S);
  } else {
    arch::wait_for_previous_grid();
    const PoolView before = as_pool(segment_state(a, pair, part - 1));
    load_fragment(before, fragment_offset(before, 0, 0, place.v, place.k), chain.S);
  }
  const int ahead = a.transfers ? from : 0;  // the first chunk, for the state only
  if (ahead < to) ask(0, ahead);
  if (ahead < from) {
    chain.template begin<Walk::kState>(0);
#pragma unroll 1
    for (int c = ahead; c < from; ++c, ++n) {
      chain.template chunk<Walk::kState>(n, c, true, target, [&] { ask(n + 1, c + 1); });
    }
    chain.begin_outputs();
  } else {  // of a sequence without chunks: products of whatever is there, which nobody reads
    chain.template begin<Walk::kOutputs>(0);
  }
  if (a.order != nullptr && part == 0) {
    chain.sync();
    if (chain.thread() == 0) say_started(a, pair, task.block + block);
  }
  // Nothing but chunks is in the inner loop: code that it would jump over costs a fetch.
  const int every = chunks_to_checkpoint(a.p);
#pragma unroll 1
  for (int c = from; c < to;) {
    const int until = min(to, c + (every - c % every));
#pragma unroll 1
    for (; c < until; ++c, ++n) {
      chain.template chunk<Walk::kOutputs>(n, c, c == from, target, [&] { ask(n + 1, c + 1); });
    }
    if (c % every == 0 && c * kChunk <= task.length) {
      if constexpr (kMaySpoil<Io>) spoil_rows(chain.S);
      store_checkpoint<true>(a.p, task.row, c / every - 1, place, chain.S);
    }
  }
  chain.settle();
  if (to > from) chain.store_last_out(n - 1, to - 1, task.rows(to - 1), target);
  // Who has the last chunk, or stands for a sequence without any.
  const bool ends = to == chunks && (to > from || part == 0);
  if (a.order != nullptr && ends && part > 0) wait_for_start(a, pair, task.block + block);
  if constexpr (kMaySpoil<Io>) {
    const SpoiltRows spoilt = spoil_rows(chain.S);
    if (to > from && chain.any(spoilt.any())) [[unlikely]] {
      chain.mark(spoilt, min(task.length, to * kChunk), target);
      if (ends) store_final<true>(a.p, task.row, place, chain.S, spoilt);
      return;
    }
  }
  if (ends) {
    const std::int64_t slot = a.final_tiles ? a.p.slots.write_slot(task.row) : core::kNullSlot;
    if (a.final_tiles && a.p.K == 128 && a.p.V % 64 == 0) {
      if (slot != core::kNullSlot) {
        chain.store_final_tiles(n, a.maps.final, task.head, static_cast<int>(slot));
      }
    } else {
      store_final<true>(a.p, task.row, place, chain.S);
    }
  }
  chain.finish();
}

// grid (heads of sequences, blocks of value rows / Blocks, parts). Ordered walks have an instance of
// their own: with the look at the lengths in front of it, ptxas places the loop's products worse.
// That one asks `ordered` all the same, because ptxas spills registers where it need not.
template <class Io, int Blocks, bool MayOrder>
__global__ void __launch_bounds__(serial_threads(Blocks), 1)
    serial(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<SerialShared<Io, Blocks>*>(memory);
  if (threadIdx.x == 0) {
    init_barriers(s.ring);
    s.ring.part = take_part(a, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y) * Blocks);
  }
  if (threadIdx.x == 32) {
    arch::prefetch_map(a.maps.k);
    arch::prefetch_map(a.maps.v);
    arch::prefetch_map(a.maps.q);
    arch::prefetch_map(a.maps.out);
  }
  __syncthreads();
  bool waited = false;
  if (a.long_rows > 0) {
    arch::wait_for_previous_grid();
    waited = true;
    arch::let_next_grid_start();  // that of the other sequences
  }
  const int part = s.ring.part;
  SerialTask found_task;
  // Of all rows: the grid before only makes records, and only the thread that loads these needs it.
  // With transfers it makes states: records are there, because that grid let this one start when it
  // had waited itself.
  const WalkPlace place = MayOrder && a.ordered ? ordered_place(a, s.out) : unordered_place();
  const bool found = find_serial_task(RecordRows{a, a.long_rows > 0 ? a.longs : nullptr},
                                      place.pair, place.block * Blocks, found_task);
  if (!found) {
    arch::wait_for_previous_grid();
    return;
  }
  // Where registers are scarce: the thread that loads has 24.
  constexpr bool kScarce = Blocks > 1 && kMaySpoil<Io>;
  if constexpr (kScarce) {
    if (threadIdx.x == 0) s.ring.task = found_task;
    __syncthreads();
  }
  const SerialTask& task = kScarce ? s.ring.task : found_task;
  const int from = first_chunk(a, task.chunks(), part, task.parts);
  const int to = first_chunk(a, task.chunks(), part + 1, task.parts);
  if (part > 0 && from == to) {  // the sequence is shorter, or has one part
    arch::wait_for_previous_grid();
    return;
  }
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (group > 0) {
    if constexpr (Blocks > 1) arch::take_registers<240>();
    walk_part<Io, Blocks>(s, a, task, part, group - 1);
  } else {
    if constexpr (Blocks > 1) arch::give_registers<24>();
    if (threadIdx.x != 0) return;
    const int ahead = a.transfers ? 0 : from;  // chunks for the state only
    bool records = waited || a.transfers;
    feed<Io, Walk::kState, true>(s.ring, a, task, 0, ahead, 0, records);
    feed<Io, Walk::kOutputs, true>(s.ring, a, task, from, to, ahead, records);
    arch::wait_for_previous_grid();
  }
}

}  // namespace hyla::gdn
