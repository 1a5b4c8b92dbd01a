// The serial part of prefill over prepared chunks (kernel_prepare.cuh): a CTA has one half of the
// value rows of one head of one sequence, so a sequence keeps two multiprocessors a head busy. One
// warpgroup holds the state; one thread of the other asks for everything a chunk needs, three
// chunks deep, behind one barrier.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/state_chain.cuh"
#include "ops/gdn_prefill/state_pool.cuh"

namespace hyla::gdn {

inline constexpr int kSerialThreads = 256;
inline constexpr int kSerialStages = 3;

template <class Io>
struct SerialShared {
  struct alignas(1024) Stage {
    KeyTiles<Io> keys;
    Io values[kTile];
    Record<Io> record;
  };
  Stage stages[kSerialStages];
  Io out[2][kTile];
  arch::Mbarrier full[kSerialStages], empty[kSerialStages];
};

struct SerialStage {
  std::uint32_t stage, parity;
};
__device__ __forceinline__ SerialStage serial_stage(int n) {
  const std::uint32_t use = __umulhi(static_cast<std::uint32_t>(n), 0xaaaaaaabu) >> 1;  // n / 3
  return {static_cast<std::uint32_t>(n) - 3 * use, use & 1};
}

// All parts of a chunk come together and go together.
template <class Io>
struct SerialPipe {
  SerialShared<Io>& s;

  __device__ __forceinline__ auto& at(int n) const { return s.stages[serial_stage(n).stage]; }
  __device__ __forceinline__ std::uint32_t keys(int n) const {
    return arch::shared_address(at(n).keys);
  }
  __device__ __forceinline__ std::uint32_t values(int n) const {
    return arch::shared_address(at(n).values);
  }
  __device__ __forceinline__ std::uint32_t inverse(int n) const {
    return arch::shared_address(at(n).record.inverse);
  }
  __device__ __forceinline__ std::uint32_t scores(int n) const {
    return arch::shared_address(at(n).record.scores);
  }
  __device__ __forceinline__ auto& factors(int n) const { return at(n).record.factors; }

  __device__ __forceinline__ void wait_keys(int n) const {
    arch::wait(s.full[serial_stage(n).stage], serial_stage(n).parity);
  }
  __device__ __forceinline__ void wait_values(int) const {}
  __device__ __forceinline__ void wait_factors(int) const {}
  __device__ __forceinline__ void wait_inverse(int) const {}
  __device__ __forceinline__ void wait_scores(int) const {}
  __device__ __forceinline__ void release_values(int) const {}
  __device__ __forceinline__ void release_factors(int) const {}
  __device__ __forceinline__ void release_inverse(int) const {}
  __device__ __forceinline__ void release_scores(int) const {}
  __device__ __forceinline__ void release_keys(int n) const {
    arch::arrive_warp(s.empty[serial_stage(n).stage], static_cast<int>(threadIdx.x) & 31);
  }
};

// What a CTA works on.
struct SerialTask {
  int row, head, half;
  int begin, length;
};

template <class Io>
__device__ __forceinline__ void feed(SerialShared<Io>& s, const FusedArguments& a,
                                     const SerialTask& task) {
  constexpr std::uint32_t kBytes = 5 * kTileBytes + kRecordCopyBytes;
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a.p, task.head, info);
  const int slot = first_chunk_slot(task.row, task.begin);
  const int chunks = (task.length + kChunk - 1) / kChunk;
  for (int n = 0; n < chunks; ++n) {
    const SerialStage at = serial_stage(n);
    auto& stage = s.stages[at.stage];
    arch::Mbarrier& full = s.full[at.stage];
    if (n >= kSerialStages) arch::wait(s.empty[at.stage], at.parity ^ 1);
    arch::arrive_expecting(full, kBytes);
    const int token = task.begin + n * kChunk;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      arch::load_tile(stage.keys[2 * half], a.maps.k, {half * 64, info.k_head, token}, full);
      arch::load_tile(stage.keys[2 * half + 1], a.maps.q, {half * 64, info.q_head, token}, full);
    }
    arch::load_tile(stage.values, a.maps.v, {task.half * 64, info.v_head, token}, full);
    const std::int64_t index = static_cast<std::int64_t>(slot + n) * a.p.heads + task.head;
    arch::load_bulk(&stage.record, &records[index], kRecordCopyBytes, full);
  }
}

template <class Io>
__device__ __forceinline__ void walk(SerialShared<Io>& s, const FusedArguments& a,
                                     const SerialTask& task) {
  const SerialPipe<Io> pipe{s};
  StateChain<Io, SerialPipe<Io>> chain(pipe, s.out, task.half, 1);
  const FragmentPlace place{task.head, chain.value_row(), chain.column()};
  load_initial(a.p, task.row, place, chain.S);
  const int chunks = (task.length + kChunk - 1) / kChunk;
  const int rows = task.length - (chunks - 1) * kChunk;  // of the last chunk
  const OutTarget target{a.maps.out, a.p.out, task.head, task.begin};
  int until_checkpoint = chunks_to_checkpoint(a.p);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    if (c + 1 == chunks && rows < kChunk) {
      pipe.wait_keys(c);
      auto& stage = pipe.at(c);
      clear_rows(stage.keys[0], stage.keys[2], rows, chain.thread());
      clear_rows(stage.values, stage.values, rows, chain.thread());
      chain.sync();
    }
    chain.chunk(c, c, target);
    if (--until_checkpoint == 0) {
      until_checkpoint = chunks_to_checkpoint(a.p);
      const int tokens = (c + 1) * kChunk;
      if (tokens <= task.length) store_checkpoint(a.p, task.row, tokens, place, chain.S);
    }
  }
  if (chunks > 0) chain.store_last_out(chunks - 1, chunks - 1, rows, target);
  store_final(a.p, task.row, place, chain.S);
  chain.finish();
}

// grid: 2 CTAs a head of a sequence
template <class Io>
__global__ void __launch_bounds__(kSerialThreads, 1)
    serial(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  SerialShared<Io>& s = *reinterpret_cast<SerialShared<Io>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSerialStages; ++i) {
      arch::init(s.full[i], 1);
      arch::init(s.empty[i], 4);
    }
    arch::fence_mbarrier_init();
  }
  __syncthreads();
  arch::wait_for_previous_grid();
  const int heads = static_cast<int>(a.p.heads), pair = static_cast<int>(blockIdx.x >> 1);
  SerialTask task;
  task.row = pair / heads;
  task.head = pair - task.row * heads;
  task.half = static_cast<int>(blockIdx.x & 1);
  if (a.p.slots.read_slot(task.row) == core::kNullSlot) return;
  find_tokens(a.p, task.row, task.begin, task.length);
  if (arch::uniform(threadIdx.x >> 7) == 1) {
    walk(s, a, task);
  } else if (threadIdx.x == 0) {
    feed(s, a, task);
  }
}

}  // namespace hyla::gdn
