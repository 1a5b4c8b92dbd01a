// Initial states, final states and checkpoints of a task, between the pools and a fragment.
#pragma once

#include "arch/registers.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/spoilt_rows.cuh"
#include "ops/gdn_prefill/state_fragment.cuh"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

struct FragmentPlace {
  int head, v, k;  // first element of the thread's fragment
};

__device__ __forceinline__ PartOfFragment part_of(const PrefillProblem& p,
                                                  const FragmentPlace& at) {
  return {at.v, at.k, static_cast<int>(p.V), static_cast<int>(p.K)};
}

// AnyDims: K may be no multiple of 128 and V none of 64, and value rows may be left out.
template <bool AnyDims = false>
__device__ __forceinline__ void store_state(const PrefillProblem& p, const PoolView& pool,
                                            std::int64_t slot, const FragmentPlace& at,
                                            const float (&S)[64], const SpoiltRows& without = {}) {
  const std::int64_t offset = fragment_offset(pool, slot, at.head, at.v, at.k);
  if constexpr (AnyDims) {
    PartOfFragment part = part_of(p, at);
    part.first = part.first && !without.first;
    part.second = part.second && !without.second;
    store_fragment(pool, offset, S, part);
  } else {
    store_fragment(pool, offset, S);
  }
}

template <bool AnyDims = false>
__device__ __forceinline__ void load_initial(const PrefillProblem& p, int row,
                                             const FragmentPlace& at, float (&S)[64]) {
  if (p.starts_from_pool(row)) {
    const std::int64_t slot = p.slots.read_slot(row);
    const std::int64_t offset = fragment_offset(p.initial, slot, at.head, at.v, at.k);
    if constexpr (AnyDims) {
      load_fragment(p.initial, offset, S, part_of(p, at));
    } else {
      load_fragment(p.initial, offset, S);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] = 0.0f;
}

// The same of a float32 state of 128 by 128 with contiguous rows, 32 keys at a time.
struct DenseInitial {
  const float* from;  // the thread's first element; null: the state is zero

  __device__ __forceinline__ DenseInitial(const PoolView& pool, int slot, const FragmentPlace& at)
      : from(slot < 0 ? nullptr
                      : static_cast<const float*>(pool.data) +
                            fragment_offset(pool, slot, at.head, at.v, at.k)) {}

  __device__ __forceinline__ void load(int part, float (&S)[64]) const {
#pragma unroll
    for (int j = 4 * part; j < 4 * part + 4; ++j) {
      float2 x = {}, y = {};
      if (from != nullptr) {
        x = fragment::load_pair(from + 8 * j);
        y = fragment::load_pair(from + 8 * 128 + 8 * j);
      }
      S[4 * j] = x.x, S[4 * j + 1] = x.y, S[4 * j + 2] = y.x, S[4 * j + 3] = y.y;
    }
  }
};

// One half of an initial state that is one piece of memory, to L2. By one thread.
__device__ __forceinline__ void prefetch_initial(const PrefillProblem& p, std::int64_t slot,
                                                 int head, int half) {
  const std::int64_t size = p.initial.dtype == DType::kFloat32 ? 4 : 2;
  const std::int64_t bytes = p.K * p.V * size / 2;
  const std::int64_t at = slot * p.initial.slot_stride + head * p.initial.head_stride;
  arch::prefetch_bulk(static_cast<const char*>(p.initial.data) + at * size + half * bytes,
                      static_cast<std::uint32_t>(bytes));
}

template <bool AnyDims = false>
__device__ __forceinline__ void store_final(const PrefillProblem& p, int row,
                                            const FragmentPlace& at, const float (&S)[64],
                                            const SpoiltRows& without = {}) {
  if (!p.final.present()) return;
  const std::int64_t slot = p.slots.write_slot(row);
  if (slot != core::kNullSlot) store_state<AnyDims>(p, p.final, slot, at, S, without);
}

// The index-th checkpoint of a row.
template <bool AnyDims = false>
__device__ __forceinline__ void store_checkpoint(const PrefillProblem& p, int row, int index,
                                                 const FragmentPlace& at, const float (&S)[64]) {
  if (p.checkpoints.present()) {
    const std::int64_t to = p.checkpoint_starts.at(row) + index;
    if (to >= 0 && to < p.checkpoints.slots) store_state<AnyDims>(p, p.checkpoints, to, at, S);
  } else if (index < p.checkpoint_slots.columns) {
    const std::int64_t to = p.slots.checked(p.checkpoint_slots.at(row, index), p.final.slots);
    if (to != core::kNullSlot) store_state<AnyDims>(p, p.final, to, at, S);
  }
}

// The same of two halves of the keys.
__device__ __forceinline__ FragmentPlace second_half(FragmentPlace at) {
  at.k += 128;
  return at;
}
__device__ __forceinline__ void load_initial(const PrefillProblem& p, int row,
                                             const FragmentPlace& at, float (&S)[2][64]) {
  load_initial<true>(p, row, at, S[0]);
  load_initial<true>(p, row, second_half(at), S[1]);
}
__device__ __forceinline__ void store_final(const PrefillProblem& p, int row,
                                            const FragmentPlace& at, const float (&S)[2][64],
                                            const SpoiltRows& without = {}) {
  store_final<true>(p, row, at, S[0], without);
  store_final<true>(p, row, second_half(at), S[1], without);
}
__device__ __forceinline__ void store_checkpoint(const PrefillProblem& p, int row, int index,
                                                 const FragmentPlace& at, const float (&S)[2][64]) {
  store_checkpoint<true>(p, row, index, at, S[0]);
  store_checkpoint<true>(p, row, index, second_half(at), S[1]);
}

// Chunks from one checkpoint to the next; more than there can be where there are none.
__device__ __forceinline__ int chunks_to_checkpoint(const PrefillProblem& p) {
  return p.checkpoint_every > 0 ? static_cast<int>(p.checkpoint_every / kChunk) : 0x7fffffff;
}

}  // namespace hyla::gdn
