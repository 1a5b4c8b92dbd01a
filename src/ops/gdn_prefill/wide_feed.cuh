// Shared memory of the serial kernel for K above 128, and the one thread that fills it. A chunk has
// 88 KB, so there is no room for three of everything: keys, queries and the rest have rings of their
// own, as deep as the time they stay needs, and are asked for in the order in which they get free.
#pragma once

#include "ops/gdn_prefill/serial_feed.cuh"

namespace hyla::gdn {

inline constexpr int kWideTiles = 4;  // of 64 columns of K or Q

template <class Io>
struct alignas(1024) WideShared {
  Io out[2][kTile];
  Io keys[kSerialStages][kWideTiles][kTile];  // until the state is updated
  Io queries[2][kWideTiles][kTile];           // until the middle of the chunk
  struct Rest {
    Io values[kTile];
    Io prepared[2][kTile];  // T', P
  } rest[2];
  Factors factors[2];
  arch::Mbarrier keys_full[kSerialStages], keys_empty[kSerialStages];
  arch::Mbarrier queries_full[2], queries_empty[2], rest_full[2], rest_empty[2];
};
static_assert(sizeof(WideShared<std::uint16_t>) <= 232448);

struct WideStage {
  std::uint32_t stage, parity;
};
__device__ __forceinline__ WideStage wide_stage(int n) {
  return {static_cast<std::uint32_t>(n) & 1, static_cast<std::uint32_t>(n) >> 1 & 1};
}

// Where the parts of chunk n lie, for the warpgroup with the state.
template <class Io>
struct WidePipe {
  WideShared<Io>& s;

  __device__ __forceinline__ std::uint32_t keys(int n) const {
    return arch::shared_address(s.keys[serial_stage(n).stage]);
  }
  __device__ __forceinline__ std::uint32_t queries(int n) const {
    return arch::shared_address(s.queries[n & 1]);
  }
  __device__ __forceinline__ std::uint32_t values(int n) const {
    return arch::shared_address(s.rest[n & 1].values);
  }
  __device__ __forceinline__ std::uint32_t inverse(int n) const {
    return arch::shared_address(s.rest[n & 1].prepared[0]);
  }
  __device__ __forceinline__ std::uint32_t scores(int n) const {
    return arch::shared_address(s.rest[n & 1].prepared[1]);
  }
  const __device__ __forceinline__ Factors& factors(int n) const { return s.factors[n & 1]; }

  __device__ __forceinline__ void wait_keys(int n) const {
    arch::wait(s.keys_full[serial_stage(n).stage], serial_stage(n).parity);
  }
  __device__ __forceinline__ void wait_queries(int n) const {
    arch::wait(s.queries_full[wide_stage(n).stage], wide_stage(n).parity);
  }
  __device__ __forceinline__ void wait_rest(int n) const {
    arch::wait(s.rest_full[wide_stage(n).stage], wide_stage(n).parity);
  }
  __device__ __forceinline__ void release_keys(int n) const {
    arch::arrive_warp(s.keys_empty[serial_stage(n).stage], static_cast<int>(threadIdx.x) & 31);
  }
  __device__ __forceinline__ void release_queries(int n) const {
    arch::arrive_warp(s.queries_empty[n & 1], static_cast<int>(threadIdx.x) & 31);
  }
  __device__ __forceinline__ void release_rest(int n) const {
    arch::arrive_warp(s.rest_empty[n & 1], static_cast<int>(threadIdx.x) & 31);
  }
};

template <class Io>
__device__ __forceinline__ void init_barriers(WideShared<Io>& s) {
  for (int i = 0; i < kSerialStages; ++i) {
    arch::init(s.keys_full[i], 1);
    arch::init(s.keys_empty[i], 4);
  }
  for (int i = 0; i < 2; ++i) {
    arch::init(s.queries_full[i], 1);
    arch::init(s.queries_empty[i], 4);
    arch::init(s.rest_full[i], 1);
    arch::init(s.rest_empty[i], 4);
  }
  arch::fence_mbarrier_init();
}

template <class Io>
__device__ __forceinline__ void load_wide_tiles(Io (&to)[kWideTiles][kTile], const CUtensorMap& map,
                                                int head, int token, arch::Mbarrier& full) {
  arch::arrive_expecting(full, kWideTiles * kTileBytes);
#pragma unroll
  for (int i = 0; i < kWideTiles; ++i) arch::load_tile(to[i], map, {64 * i, head, token}, full);
}

// Chunks [from, to) of the task as the CTA's n-th and following ones.
template <class Io, Walk W>
__device__ __forceinline__ void feed(WideShared<Io>& s, const FusedArguments& a,
                                     const SerialTask& task, int from, int to, int n) {
  constexpr bool kOut = W == Walk::kOutputs;
  constexpr std::uint32_t kRestBytes =
      (kOut ? 3 : 2) * kTileBytes + static_cast<std::uint32_t>(sizeof(Factors));
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a, task.head, info);
  const int slot = first_chunk_slot(task.row, task.begin);
  for (int c = from; c < to; ++c, ++n) {
    const int token = task.begin + c * kChunk;
    const SerialStage third = serial_stage(n);
    const WideStage half = wide_stage(n);
    if (n >= kSerialStages) arch::wait(s.keys_empty[third.stage], third.parity ^ 1);
    load_wide_tiles(s.keys[third.stage], a.maps.k, info.k_head, token, s.keys_full[third.stage]);

    if (n >= 2) arch::wait(s.queries_empty[half.stage], half.parity ^ 1);
    arch::Mbarrier& queries_full = s.queries_full[half.stage];
    if constexpr (kOut) {
      load_wide_tiles(s.queries[half.stage], a.maps.q, info.q_head, token, queries_full);
    } else {
      arch::arrive(queries_full);
    }

    if (n >= 2) arch::wait(s.rest_empty[half.stage], half.parity ^ 1);
    arch::Mbarrier& full = s.rest_full[half.stage];
    auto& rest = s.rest[half.stage];
    arch::arrive_expecting(full, kRestBytes);
    arch::load_tile(rest.values, a.maps.v, {task.block * 64, info.v_head, token}, full);
    const Record<Io>& record = records[static_cast<std::int64_t>(slot + c) * a.p.heads + task.head];
    arch::load_bulk(rest.prepared, record.inverse, kOut ? 2 * kTileBytes : kTileBytes, full);
    arch::load_bulk(&s.factors[half.stage], &record.factors, sizeof(Factors), full);
  }
}

}  // namespace hyla::gdn
