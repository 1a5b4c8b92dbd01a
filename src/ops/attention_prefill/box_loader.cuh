// Keys and values by the copy engine, in boxes of 8 or 16 rows: one warp for keys, one for values,
// a lane for each box of a tile.
#pragma once

#include "arch/tma.cuh"
#include "ops/attention_prefill/arguments.cuh"

namespace hyla::attention {

inline constexpr int kTilesAhead = 3;  // that are left of an item when the next is drawn

// kScaled: where columns have scales, those of keys and of values come with each tile of keys.
template <class Shape, class Arguments, bool kScaled = false>
struct BoxLoader {
  static constexpr int kWarps = 2;
  static constexpr bool kOneCopy = false;
  // Behind TileShared.
  static constexpr int kSharedBytes = kScaled ? sizeof(ColumnScales<Shape>) : 0;
  static constexpr int kArrivals = 1;                                         // on a slot's `full`
  static constexpr std::uint32_t kScaleBytes = Shape::kKeys * sizeof(float);  // of keys or values
  static __device__ __forceinline__ void init(TileShared<Shape>& memory) {
    if constexpr (kScaled) init_barriers(column_scales(memory));
  }

  const Arguments& a;
  TileShared<Shape>& shared;
  const int warp, lane;
  RingPosition<Shape::kSlots> at{};

  __device__ __forceinline__ BoxLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                       int warp_index, int lane_index)
      : a(arguments), shared(memory), warp(warp_index), lane(lane_index) {}

  template <class Rows>
  __device__ __forceinline__ void load_tile(const Rows& rows, const CUtensorMap& map,
                                            const BoxShape& box, RingBarriers<Shape::kSlots>& ring,
                                            const unsigned char* slots, const Item& item,
                                            int tile) {
    const int first = lane * box.rows, token = tile * Shape::kKeys + first;
    int row = static_cast<int>(kNoRow);
    if (first < Shape::kKeys && token + box.rows > item.seen_begin && token < item.seen_end) {
      row = static_cast<int>(
          rows.row(static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token)));
    }
    arch::wait(ring.empty[at.slot], at.parity ^ 1);
    arch::Mbarrier& full = ring.full[at.slot];
    std::uint32_t bytes = Shape::kTileBytes;
    const bool scaled = kScaled && warp == 0;
    if constexpr (kScaled) {
      if (scaled && scaled_columns(a)) {
        arch::wait(column_scales(shared).empty[at.slot], at.parity ^ 1);
        bytes += kScaleBytes * (a.keys.folds + a.values.folds);
      }
    }
    if (lane == 0) {
      arch::arrive_expecting(full, bytes);
      if constexpr (kScaled) {
        if (scaled) load_scales(full, item, tile);
      }
    }
    __syncwarp();
    if (first < Shape::kKeys) {
      const std::uint32_t to = arch::shared_address(slots) + at.slot * Shape::kTileBytes +
                               first / 8 * Shape::kGroupBytes;
#pragma unroll 1
      for (int c = 0; c < box.chunks; ++c) {
        arch::load_tile(to + 1024 * c, map, arch::Coordinates5{64 * c, row, 0, 0, item.head}, full);
      }
    }
    __syncwarp();
    at.advance();
  }

  __device__ __forceinline__ void load_scales(arch::Mbarrier& full, const Item& item, int tile) {
    ColumnScales<Shape>& scales = column_scales(shared);
    const std::uint32_t first = a.keys.row(static_cast<std::uint32_t>(item.row),
                                           static_cast<std::uint32_t>(tile * Shape::kKeys));
    const std::int64_t from = std::int64_t{item.head} * a.keys.room + first;
    if (a.keys.folds) {
      arch::load_bulk(scales.keys[at.slot], a.keys.scales + from, kScaleBytes, full);
    }
    if (a.values.folds) {
      arch::load_bulk(scales.values[at.slot], a.values.scales + from, kScaleBytes, full);
    }
  }

  __device__ __forceinline__ void load_one(const Item& item, int tile) {
    if (warp == 0) {
      load_tile(a.keys, a.key_map, a.key_boxes, shared.key_ring, shared.keys[0], item, tile);
    } else {
      load_tile(a.values, a.value_map, a.value_boxes, shared.value_ring, shared.values[0], item,
                tile);
    }
  }

  __device__ __forceinline__ void finish() {}

  // What needs no queries.
  __device__ __forceinline__ void start(const Item& item) {
    if (item.last_tile >= 0) load_one(item, item.last_tile);
  }

  // The rest; `draw` is called when kTilesAhead are left.
  template <class Draw>
  __device__ __forceinline__ void load(const Item& item, const Draw& draw) {
    const int first = item.first_tile, last = item.last_tile;
    if (last - first <= kTilesAhead) draw();
#pragma unroll 1
    for (int tile = last - 1; tile >= first; --tile) {
      if (tile - first == kTilesAhead) draw();
      load_one(item, tile);
    }
  }
};

}  // namespace hyla::attention
