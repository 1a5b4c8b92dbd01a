// Shared memory of the serial kernel for K above 128, and the one thread that fills it. Keys,
// queries and the rest of a chunk have rings of their own, two places each, and are asked for in
// the order in which places get free.
#pragma once

#include "ops/gdn_prefill/serial_feed.cuh"

namespace hyla::gdn {

inline constexpr int kWideTiles = 4;  // of 64 columns of K or Q

template <class Io>
struct alignas(1024) WideShared {
  Io keys[2][kWideTiles][kTile];     // until the state is updated
  Io queries[2][kWideTiles][kTile];  // until the outputs of the state are there
  struct Rest {
    Io values[kTile];
    Io prepared[2][kTile];  // T', P
  } rest[2];
  Io state[kWideTiles][kTile];  // S^T before the chunk, for the outputs
  Io update[kTile];             // U^T, for the outputs
  Io out[1][kTile];
  Factors factors[2];
  arch::Mbarrier keys_full[2], keys_empty[2], queries_full[2], queries_empty[2];
  arch::Mbarrier rest_full[2], rest_empty[2];
  arch::Mbarrier state_full, state_empty, update_full, update_empty;
  int part;  // that the CTA has
};
static_assert(sizeof(WideShared<std::uint16_t>) <= 232448);

struct WideStage {
  std::uint32_t stage, parity;
};
__device__ __forceinline__ WideStage wide_stage(int n) {
  return {static_cast<std::uint32_t>(n) & 1, static_cast<std::uint32_t>(n) >> 1 & 1};
}
__device__ __forceinline__ void wait_stage(arch::Mbarrier (&ring)[2], int n) {
  arch::wait(ring[wide_stage(n).stage], wide_stage(n).parity);
}
// Until what chunk n - 2 had there is free.
__device__ __forceinline__ void wait_place(arch::Mbarrier (&empty)[2], int n) {
  if (n >= 2) arch::wait(empty[wide_stage(n).stage], wide_stage(n).parity ^ 1);
}
__device__ __forceinline__ void release(arch::Mbarrier& barrier) {
  arch::arrive_warp(barrier, static_cast<int>(threadIdx.x) & 31);
}

template <class Io>
__device__ __forceinline__ void init_barriers(WideShared<Io>& s) {
  for (int i = 0; i < 2; ++i) {
    arch::init(s.keys_full[i], 1);
    arch::init(s.keys_empty[i], 4);
    arch::init(s.queries_full[i], 1);
    arch::init(s.queries_empty[i], 4);
    arch::init(s.rest_full[i], 1);
    arch::init(s.rest_empty[i], 8);
  }
  arch::init(s.state_full, 4);
  arch::init(s.state_empty, 4);
  arch::init(s.update_full, 4);
  arch::init(s.update_empty, 4);
  arch::fence_mbarrier_init();
}

template <class Io>
__device__ __forceinline__ void load_wide_tiles(Io (&to)[kWideTiles][kTile], const CUtensorMap& map,
                                                int head, int token, arch::Mbarrier& full) {
  arch::arrive_expecting(full, kWideTiles * kTileBytes);
#pragma unroll
  for (int i = 0; i < kWideTiles; ++i) arch::load_tile(to[i], map, {64 * i, head, token}, full);
}

// Chunks [from, to) of the task as the CTA's n-th and following ones; those with outputs are its
// first.
template <class Io, Walk W>
__device__ __forceinline__ void feed(WideShared<Io>& s, const FusedArguments& a,
                                     const SerialTask& task, int from, int to, int n) {
  constexpr bool kOut = W == Walk::kOutputs;
  constexpr std::uint32_t kRestBytes =
      (kOut ? 3 : 2) * kTileBytes + static_cast<std::uint32_t>(sizeof(Factors));
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a, task.head, info);
  for (int c = from; c < to; ++c, ++n) {
    const int token = task.begin + c * kChunk, stage = n & 1;
    wait_place(s.keys_empty, n);
    load_wide_tiles(s.keys[stage], a.maps.k, info.k_head, token, s.keys_full[stage]);
    if constexpr (kOut) {
      const int place = (c - from) & 1;
      wait_place(s.queries_empty, c - from);
      load_wide_tiles(s.queries[place], a.maps.q, info.q_head, token, s.queries_full[place]);
    }
    wait_place(s.rest_empty, n);
    arch::Mbarrier& full = s.rest_full[stage];
    auto& rest = s.rest[stage];
    arch::arrive_expecting(full, kRestBytes);
    arch::load_tile(rest.values, a.maps.v, {task.block * 64, info.v_head, token}, full);
    const Record<Io>& record =
        records[static_cast<std::int64_t>(task.slot + c) * a.p.heads + task.head];
    arch::load_bulk(rest.prepared, record.inverse, kOut ? 2 * kTileBytes : kTileBytes, full);
    arch::load_bulk(&s.factors[stage], &record.factors, sizeof(Factors), full);
  }
}

}  // namespace hyla::gdn
