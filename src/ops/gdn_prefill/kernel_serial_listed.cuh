// The serial part of prefill over prepared chunks with a list of checkpoints: as kernel_serial.cuh
// with one block of 64 value rows and one part, in the steps of listed_steps.cuh.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/kernel_serial.cuh"
#include "ops/gdn_prefill/listed_steps.cuh"
#include "ops/gdn_prefill/state_chain.cuh"

namespace hyla::gdn {

template <class Io>
struct ListedShared {
  SerialShared<Io, 1> serial;
  PartScratch part;
};

// By one thread.
template <class Io, class Ring>
__device__ __forceinline__ void feed_listed(Ring& ring, const FusedArguments& a,
                                            const SerialTask& task) {
  const auto load = [&](int n, int c, const ChunkInfo& info, const Record<Io>* record) {
    const SerialStage at = serial_stage(n);
    if (n >= kSerialStages) arch::wait(ring.empty[at.stage], at.parity ^ 1);
    auto& stage = ring.stages[at.stage];
    arch::Mbarrier& full = ring.full[at.stage];
    constexpr std::uint32_t kWhole = 7 * kTileBytes + sizeof(Factors);
    arch::arrive_expecting(full, record != nullptr ? kWhole : 3 * kTileBytes);
    const int token = task.begin + c * kChunk;
    arch::load_tile(stage.keys[0], a.maps.k, {0, info.k_head, token}, full);
    arch::load_tile(stage.keys[2], a.maps.k, {64, info.k_head, token}, full);
    arch::load_tile(stage.value_tile(0), a.maps.v, {task.block * 64, info.v_head, token}, full);
    if (record == nullptr) return;
    arch::load_tile(stage.keys[1], a.maps.q, {0, info.q_head, token}, full);
    arch::load_tile(stage.keys[3], a.maps.q, {64, info.q_head, token}, full);
    arch::load_bulk(stage.inverse_tile(), record->inverse, 2 * kTileBytes, full);
    arch::load_bulk(&ring.factors[at.stage], &record->factors, sizeof(Factors), full);
  };
  feed_listed<Io>(a, task, load);
}

template <class Io>
__device__ __forceinline__ void walk_listed(ListedShared<Io>& s, const FusedArguments& a,
                                            const SerialTask& task) {
  auto& ring = s.serial.ring;
  using Pipe = SerialPipe<std::remove_reference_t<decltype(ring)>>;
  constexpr int kBarrier = 1;
  const Pipe pipe{ring, 0};
  StateChain<Io, Pipe> chain(pipe, s.serial.out[0], task.block, kBarrier);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin, static_cast<int>(a.p.V)};
  const auto keep = [&](int index) {
    if constexpr (kMaySpoil<Io>) spoil_rows(chain.S);
    store_checkpoint<true>(a.p, task.row, index, place, chain.S);
  };
  load_initial<true>(a.p, task.row, place, chain.S);
  ListedSteps steps(a.p, task.row, task.length);
  int n = 0;
  bool first = true;
#pragma unroll 1
  for (; steps.next(keep); ++n) {
    const int c = steps.chunk;
    clear_tail(pipe, chain, n, steps.part > 0 ? steps.part : task.rows(c));
    if (steps.part == 0) {
      chain.template chunk<Walk::kOutputs>(n, c, first, target);
      first = false;
      continue;
    }
    // The state, while the part is walked over; and there are no registers for it while T' is made.
    volatile float before[64];
    const auto put_back = [&] {
#pragma unroll
      for (int i = 0; i < 64; ++i) chain.S[i] = before[i];
    };
#pragma unroll
    for (int i = 0; i < 64; ++i) before[i] = chain.S[i];
    chain.free_tiles();  // which of them the outputs take next does not matter then
    auto& stage = pipe.at(n);
    make_part<2, 2>(a, task.head, task.begin + c * kChunk, steps.part, stage.keys[0], s.part,
                    pipe.factors(n), stage.inverse_tile(), kBarrier, chain.thread());
    put_back();
    chain.template chunk<Walk::kState>(n, c, true, target);
    keep(steps.kept - 1);
    put_back();
  }
  const int last = task.chunks() - 1;
  if (last >= 0) chain.store_last_out(n - 1, last, task.rows(last), target);
  SpoiltRows spoilt;
  if constexpr (kMaySpoil<Io>) {
    if (last >= 0) spoilt = spoil_rows(chain.S);
    if (chain.any(spoilt.any())) chain.mark(spoilt, task.length, target);
  }
  store_final<true>(a.p, task.row, place, chain.S, spoilt);
  chain.finish();
}

// grid (heads of sequences, blocks of value rows)
template <class Io>
__global__ void __launch_bounds__(serial_threads(1), 1)
    serial_listed(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<ListedShared<Io>*>(memory);
  if (threadIdx.x == 0) init_barriers(s.serial.ring);
  __syncthreads();
  arch::wait_for_previous_grid();
  SerialTask task;
  if (!find_serial_task(RecordRows{a, nullptr}, static_cast<int>(blockIdx.x),
                        static_cast<int>(blockIdx.y), task)) {
    return;
  }
  if (arch::uniform(threadIdx.x >> 7) == 1) {
    walk_listed(s, a, task);
  } else if (threadIdx.x == 0) {
    feed_listed<Io>(s.serial.ring, a, task);
  }
}

}  // namespace hyla::gdn
