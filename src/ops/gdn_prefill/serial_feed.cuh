// Shared memory of the serial kernels, and the one thread that fills it: everything a chunk needs,
// three chunks deep, behind one barrier.
#pragma once

#include "arch/tma_once.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/handover.cuh"
#include "ops/gdn_prefill/long_rows.cuh"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/serial_chain.cuh"

namespace hyla::gdn {

inline constexpr int kSerialStages = 3;

// Threads of a CTA with that many blocks of 64 value rows, a warpgroup each, and one that loads.
inline constexpr int serial_threads(int blocks) { return 128 + blocks * 128; }

// K lies in tiles 0 and 2 of `keys`, where the products look for it.
template <class Io, int Blocks>
struct alignas(1024) OutputStage {
  KeyTiles<Io> keys;
  Io values[Blocks][kTile];
  Io prepared[2][kTile];  // T', P

  __device__ __forceinline__ Io* value_tile(int block) { return values[block]; }
  __device__ __forceinline__ Io* inverse_tile() { return prepared[0]; }
};

// Without outputs there is no Q: V and T' take its place, and two CTAs fit a multiprocessor.
template <class Io>
struct alignas(1024) StateStage {
  KeyTiles<Io> keys;

  __device__ __forceinline__ Io* value_tile(int) { return keys[1]; }
  __device__ __forceinline__ Io* inverse_tile() { return keys[3]; }
};

// What a CTA works on: blocks of the value rows of one head of one sequence.
struct SerialTask {
  int row, head, block;  // the first one
  int begin, length;
  int slot;   // of the first chunk
  int parts;  // that are worked on at once

  __device__ __forceinline__ int chunks() const { return (length + kChunk - 1) / kChunk; }
  // Of a chunk: 64, but for the last.
  __device__ __forceinline__ int rows(int chunk) const {
    return min(kChunk, length - chunk * kChunk);
  }
};

template <class Stage_, int Blocks>
struct StageRing {
  using Stage = Stage_;
  static constexpr int kBlocks = Blocks;
  Stage stages[kSerialStages];
  Factors factors[kSerialStages];
  arch::Mbarrier full[kSerialStages], empty[kSerialStages];
  SerialTask task;  // only where registers are scarce
  int part;         // of the sequence
};

template <class Io, int Blocks>
struct alignas(1024) SerialShared {
  Io out[Blocks][2][kTile];
  StageRing<OutputStage<Io, Blocks>, Blocks> ring;
};
static_assert(sizeof(SerialShared<std::uint16_t, 2>) <= 227 * 1024);

template <class Io>
struct TransferShared {
  StageRing<StateStage<Io>, 1> ring;
  int start;
};

struct SerialStage {
  std::uint32_t stage, parity;
};
__device__ __forceinline__ SerialStage serial_stage(int n) {
  const std::uint32_t use = __umulhi(static_cast<std::uint32_t>(n), 0xaaaaaaabu) >> 1;  // n / 3
  return {static_cast<std::uint32_t>(n) - 3 * use, use & 1};
}

// All parts of a chunk come together and go together.
template <class Ring>
struct SerialPipe {
  static constexpr bool kRoomy = Ring::kBlocks == 1;
  Ring& ring;
  const int block;  // of the CTA's value rows

  __device__ __forceinline__ auto& at(int n) const { return ring.stages[serial_stage(n).stage]; }
  __device__ __forceinline__ std::uint32_t keys(int n) const {
    return arch::shared_address(at(n).keys);
  }
  __device__ __forceinline__ std::uint32_t values(int n) const {
    return arch::shared_address(at(n).value_tile(block));
  }
  __device__ __forceinline__ std::uint32_t inverse(int n) const {
    return arch::shared_address(at(n).inverse_tile());
  }
  __device__ __forceinline__ std::uint32_t scores(int n) const {
    return arch::shared_address(at(n).prepared[1]);
  }
  __device__ __forceinline__ Factors& factors(int n) const {
    return ring.factors[serial_stage(n).stage];
  }

  // The same of a place, which is the same for all threads.
  __device__ __forceinline__ std::uint32_t stage(int n) const { return serial_stage(n).stage; }
  __device__ __forceinline__ std::uint32_t keys_at(std::uint32_t stage) const {
    return arch::shared_address(ring.stages[stage].keys);
  }
  __device__ __forceinline__ std::uint32_t values_at(std::uint32_t stage) const {
    return arch::shared_address(ring.stages[stage].value_tile(block));
  }
  __device__ __forceinline__ std::uint32_t inverse_at(std::uint32_t stage) const {
    return arch::shared_address(ring.stages[stage].inverse_tile());
  }
  __device__ __forceinline__ std::uint32_t scores_at(std::uint32_t stage) const {
    return arch::shared_address(ring.stages[stage].prepared[1]);
  }
  const __device__ __forceinline__ Factors& factors_at(std::uint32_t stage) const {
    return ring.factors[stage];
  }

  __device__ __forceinline__ void wait_keys(int n) const {
    arch::wait(ring.full[serial_stage(n).stage], serial_stage(n).parity);
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
    arch::arrive_warp(ring.empty[serial_stage(n).stage], static_cast<int>(threadIdx.x) & 31);
  }
};

template <class Ring>
__device__ __forceinline__ void init_barriers(Ring& ring) {
  for (int i = 0; i < kSerialStages; ++i) {
    arch::init(ring.full[i], 1);
    arch::init(ring.empty[i], 4 * Ring::kBlocks);
  }
  arch::fence_mbarrier_init();
}

// False: padding, or no row that has records.
__device__ __forceinline__ bool find_serial_task(const RecordRows& all, int pair, int block,
                                                 SerialTask& task) {
  const PrefillProblem& p = all.a.p;
  const int heads = static_cast<int>(p.heads), i = pair / heads;
  if (i >= all.count()) return false;
  task.row = all.row(i);
  task.head = pair - i * heads;
  task.block = block;
  if (p.slots.read_slot(task.row) == core::kNullSlot) return false;
  find_tokens(p, task.row, task.begin, task.length);
  task.slot = all.first_slot(i, task.begin);
  // Rows that overlap, as no valid ones do, may have more chunks than there are records.
  if (task.slot + task.chunks() > all.slots()) return false;
  task.parts = all.longs != nullptr ? all.longs->parts : all.a.parts;
  return true;
}

// Chunks [from, to) of the task as the CTA's n-th and following ones. `waited`: records are there.
// Before, what is not made by the grid before is asked for. Hands: records may be handed over.
template <class Io, Walk W, bool Hands = false, class Ring>
__device__ __forceinline__ void feed(Ring& ring, const FusedArguments& a, const SerialTask& task,
                                     int from, int to, int n, bool& waited) {
  constexpr bool kOut = W == Walk::kOutputs, kValues = W != Walk::kTransfer;
  constexpr std::uint32_t kTiles = 3 + (kOut ? 3 : 0) + (kValues ? Ring::kBlocks : 0);
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a, task.head, info);
  const auto ask_tiles = [&](int c, const SerialStage& at) {
    auto& stage = ring.stages[at.stage];
    arch::Mbarrier& full = ring.full[at.stage];
    arch::arrive_expecting(full, kTiles * kTileBytes + static_cast<std::uint32_t>(sizeof(Factors)));
    const int token = task.begin + c * kChunk;
    arch::load_tile(stage.keys[0], a.maps.k, {0, info.k_head, token}, full);
    arch::load_tile(stage.keys[2], a.maps.k, {64, info.k_head, token}, full);
    if constexpr (kValues) {
#pragma unroll
      for (int block = 0; block < Ring::kBlocks; ++block) {
        arch::load_tile_once(stage.value_tile(block), a.maps.v,
                             {(task.block + block) * 64, info.v_head, token}, full);
      }
    }
    if constexpr (kOut) {
      arch::load_tile(stage.keys[1], a.maps.q, {0, info.q_head, token}, full);
      arch::load_tile(stage.keys[3], a.maps.q, {64, info.q_head, token}, full);
    }
  };
  const int early = waited ? from : min(to, from + kSerialStages);
  if (early > from) {
#pragma unroll 1
    for (int c = from; c < early; ++c) ask_tiles(c, serial_stage(n + c - from));
    if (!Hands || a.handover.ready == nullptr) arch::wait_for_previous_grid();
    waited = true;
  }
#pragma unroll 1
  for (int c = from; c < to; ++c, ++n) {
    const SerialStage at = serial_stage(n);
    if (c >= early) {
      if (n >= kSerialStages) arch::wait(ring.empty[at.stage], at.parity ^ 1);
      ask_tiles(c, at);
    }
    auto& stage = ring.stages[at.stage];
    const std::int64_t number = static_cast<std::int64_t>(task.slot + c) * a.p.heads + task.head;
    const Record<Io>& record = records[number];
    arch::Mbarrier& full = ring.full[at.stage];
    if constexpr (Hands) {
      if (a.handover.ready != nullptr) wait_for_record(a.handover.ready + number);
    }
    arch::load_bulk(stage.inverse_tile(), record.inverse, kOut ? 2 * kTileBytes : kTileBytes, full);
    arch::load_bulk(&ring.factors[at.stage], &record.factors, sizeof(Factors), full);
  }
}

// Where the sequence ends inside the chunk, the rows past it are made zeros first. Every warpgroup
// clears all keys for itself: both write the same zeros.
template <class Pipe, class Chain>
__device__ __forceinline__ void clear_tail(const Pipe& pipe, const Chain& chain, int n, int rows) {
  if (rows == kChunk) return;
  pipe.wait_keys(n);
  auto& stage = pipe.at(n);
  clear_rows(stage.keys[0], stage.keys[2], rows, chain.thread());
  clear_rows(stage.value_tile(pipe.block), stage.value_tile(pipe.block), rows, chain.thread());
  chain.sync();
}

}  // namespace hyla::gdn
