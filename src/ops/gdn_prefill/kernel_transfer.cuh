// What each segment makes of its initial state (segments.cuh): a CTA has one half of the rows of N
// or of M of one segment. Two CTAs share a multiprocessor.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/segment_rows.cuh"
#include "ops/gdn_prefill/serial_feed.cuh"
#include "ops/gdn_prefill/state_pool.cuh"

namespace hyla::gdn {

// Of a grid's z: M of segments 1 and following, then N of segments 0 and following. M first: where
// it is zero, its CTA ends at once.
struct TransferItem {
  int segment;
  bool matrix;  // M
};
__device__ __forceinline__ TransferItem transfer_item(const FusedArguments& a, int z) {
  const int matrices = a.parts - 2;
  return z < matrices ? TransferItem{z + 1, true} : TransferItem{z - matrices, false};
}

// The chunk from which on a walk to the end of a segment needs to start: whatever state is there,
// what is left of it at the end lies below the numbers of float32 (kForgottenLog2). By one warp.
template <class Io>
__device__ __forceinline__ int first_remembered(const FusedArguments& a, const SerialTask& task,
                                                int from, int to) {
  constexpr int kAtOnce = 4;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto* records = static_cast<const Record<Io>*>(a.records);
  const std::int64_t slot = task.slot;
  const double cutoff = a.p.decay_cutoff_log2;
  const float forgotten =
      cutoff > 0 && cutoff < kForgottenLog2 ? -static_cast<float>(cutoff) : -kForgottenLog2;
  float after = 0.0f;  // of the chunks behind those of this round
  for (int last = to; last > from; last -= 32 * kAtOnce) {
    float bound[kAtOnce];  // of chunks last - 1 - kAtOnce lane - i
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int c = last - 1 - kAtOnce * lane - i;
      bound[i] = c < from ? 0.0f : records[(slot + c) * a.p.heads + task.head].factors.decay[2];
    }
    float own = 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own += bound[i];
    float sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    // Not sum - own: a bound of kNeverForgets would take the digits of the others with it.
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    float here = after + (lane == 0 ? 0.0f : before);
    int found = -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      here += bound[i];
      if (found < 0 && here <= forgotten) found = last - 1 - kAtOnce * lane - i;
    }
    const unsigned who = __ballot_sync(0xffffffffu, found >= from);
    if (who != 0) return __shfl_sync(0xffffffffu, found, __ffs(static_cast<int>(who)) - 1);
    after += __shfl_sync(0xffffffffu, sum, 31);
  }
  return from;
}

template <class Io>
__device__ __forceinline__ void walk_transfer(TransferShared<Io>& s, const FusedArguments& a,
                                              const SerialTask& task, const TransferItem& item,
                                              int from, int to, bool forgets) {
  using Pipe = SerialPipe<decltype(s.ring)>;
  const Pipe pipe{s.ring, 0};
  SerialChain<Io, Pipe> chain(pipe, nullptr, task.block, 1);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  const OutTarget none{a.maps.out, a.p.out, task.head, task.begin};
  const int pair = task.row * static_cast<int>(a.p.heads) + task.head;
  const auto walk = [&]<Walk W>() {
    if (from >= to) return;
    pipe.wait_keys(0);
    chain.template begin<W>(0);
#pragma unroll 1
    for (int n = 0; n < to - from; ++n) {
      chain.template chunk<W>(n, 0, true, none, [&] {
        if (n + 1 < to - from) pipe.wait_keys(n + 1);
      });
    }
    chain.settle();
  };
  if (item.matrix) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int v = place.v + (i >> 1 & 1) * 8, k = place.k + (i >> 2) * 8 + (i & 1);
      chain.S[i] = v == k ? 1.0f : 0.0f;
    }
    walk.template operator()<Walk::kTransfer>();
    store_state(a.p, as_pool(segment_matrix(a, pair, item.segment)), 0, {0, place.v, place.k},
                chain.S);
    return;
  }
  if (item.segment == 0 && !forgets) {
    load_initial(a.p, task.row, place, chain.S);
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) chain.S[i] = 0.0f;
  }
  walk.template operator()<Walk::kState>();
  store_state(a.p, as_pool(segment_state(a, pair, item.segment)), 0, {0, place.v, place.k},
              chain.S);
}

// Half of an initial state, as float32.
__device__ __forceinline__ void copy_initial(const FusedArguments& a, const SerialTask& task) {
  const int pair = task.row * static_cast<int>(a.p.heads) + task.head;
  const PoolView& pool = a.p.initial;
  const std::int64_t base =
      a.p.slots.read_slot(task.row) * pool.slot_stride + task.head * pool.head_stride;
  float* to = first_state(a, pair) + task.block * 64 * 128;
  for (int i = static_cast<int>(threadIdx.x); i < 64 * 128; i += serial_threads(1)) {
    const int v = task.block * 64 + (i >> 7), k = i & 127;
    to[i] =
        device::load_number(pool.data, pool.dtype, base + v * pool.v_stride + k * pool.k_stride);
  }
}

// grid (heads of sequences, 2, 2 parts - 3)
template <class Io>
__global__ void __launch_bounds__(serial_threads(1), 2)
    transfer(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  TransferShared<Io>& s = *reinterpret_cast<TransferShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s.ring);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const TransferItem item = transfer_item(a, static_cast<int>(blockIdx.z));
  SerialTask task;
  if (!find_serial_task(RecordRows{a, nullptr}, static_cast<int>(blockIdx.x),
                        static_cast<int>(blockIdx.y), task)) {
    return;
  }
  // Where value rows may be spoilt, kernel_again.cuh starts from it.
  const bool copies = kMaySpoil<Io> && item.segment == 0 && !item.matrix;
  if (copies && a.p.starts_from_pool(task.row)) copy_initial(a, task);
  const int begin = first_chunk(a, task.chunks(), item.segment);
  const int end = first_chunk(a, task.chunks(), item.segment + 1);
  if (end == task.chunks()) return;  // nobody starts after it
  if (threadIdx.x < 32) {
    const int start = first_remembered<Io>(a, task, begin, end);
    if (threadIdx.x == 0) s.start = start;
  }
  __syncthreads();
  const bool forgets = s.start > begin;
  if (item.matrix) {
    const int pair = static_cast<int>(blockIdx.x);
    if (threadIdx.x == 0) *segment_forgets(a, pair, item.segment) = forgets;
    if (forgets) return;
  }
  const int from = s.start;
  if (arch::uniform(threadIdx.x >> 7) == 1) {
    arch::take_registers<208>();
    walk_transfer(s, a, task, item, from, end, forgets);
  } else {
    arch::give_registers<40>();
    if (threadIdx.x != 0) return;
    bool waited = true;
    if (item.matrix) {
      feed<Io, Walk::kTransfer>(s.ring, a, task, from, end, 0, waited);
    } else {
      feed<Io, Walk::kState>(s.ring, a, task, from, end, 0, waited);
    }
  }
}

}  // namespace hyla::gdn
