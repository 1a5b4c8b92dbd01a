// The loading warps. The leader draws items and loads their queries; keys and values follow tile by
// tile, from the last to the first.
//
// An entry of a page table is looked at only where the item sees a key of it. A part of a tile that
// has no row, or that the item does not see, is zeros.
#pragma once

#include "ops/attention_prefill/box_loader.cuh"
#include "ops/attention_prefill/row_loader.cuh"

namespace hyla::attention {

// Queries beyond the row's end are others' or zeros: computed, never stored.
template <class Shape, class Arguments>
__device__ __forceinline__ void load_queries(const Arguments& a, TileShared<Shape>& shared,
                                             const Item& item) {
  const int rows = a.group * a.tokens_per_tile;
  arch::arrive_expecting(shared.queries_full,
                         static_cast<std::uint32_t>(rows * 128 * Shape::kChunks));
#pragma unroll 1
  for (int c = 0; c < Shape::kChunks; ++c) {
    arch::load_tile(arch::shared_address(shared.queries) + c * Shape::kRows * 128, a.query_map,
                    arch::Coordinates4{64 * c, 0, item.begin + item.token, item.head},
                    shared.queries_full);
  }
}

template <class Shape, class Arguments>
__device__ __forceinline__ void write_item(const Arguments& a, TileShared<Shape>& shared,
                                           std::uint32_t count, int ticket, int lane) {
  if (a.own_schedule) {  // the first one is there
    if (lane == 0 && count > 0) shared.items[count & 3] = Item();
    __syncwarp();
    return;
  }
  Item item = find_item(a.schedule, a.kv_heads, a.tokens_per_tile, Shape::kKeys, ticket);
  if (item.exists()) find_keys<Shape::kKeys>(item, a.mask, a.tokens_per_tile);
  if (lane == 0) shared.items[count & 3] = item;
  __syncwarp();
}

// A ticket is drawn when few tiles of the item before are left: early enough to find the next item
// in time, late enough that CTAs with short items draw more of them.
template <class Shape, class Loader, class Arguments>
__device__ __forceinline__ void lead(const Arguments& a, TileShared<Shape>& shared, int lane) {
  Loader loader(a, shared, 0, lane);
  int ticket = 0;
  const auto draw = [&] {
    if (lane == 0 && !a.own_schedule) ticket = atomicAdd(&a.schedule.counters->ticket, 1);
  };
  draw();
  for (std::uint32_t count = 0;; ++count) {
    write_item(a, shared, count, __shfl_sync(0xffffffffu, ticket, 0), lane);
    const Item& item = shared.items[count & 3];
    const bool exists = item.exists();
    loader.start(item);
    arch::wait(shared.queries_empty, ~count & 1);
    if (lane == 0) {
      if (exists) {
        load_queries<Shape>(a, shared, item);
      } else {
        arch::arrive(shared.queries_full);
      }
    }
    __syncwarp();
    if (!exists) break;
    loader.load(item, draw);
  }
  loader.finish();
}

// The others read the item when its queries are there.
template <class Shape, class Loader, class Arguments>
__device__ __forceinline__ void follow(const Arguments& a, TileShared<Shape>& shared, int warp,
                                       int lane) {
  Loader loader(a, shared, warp, lane);
  for (std::uint32_t count = 0;; ++count) {
    arch::wait(shared.queries_full, count & 1);
    arch::arrive_warp(shared.queries_empty, lane);
    const Item& item = shared.items[count & 3];
    if (!item.exists()) break;
    loader.start(item);
    loader.load(item, [] {});
  }
  loader.finish();
}

// Where all warps of the group load everything together: one copy of the loader's code.
template <class Shape, class Loader, class Arguments>
__device__ __forceinline__ void go_together(const Arguments& a, TileShared<Shape>& shared, int warp,
                                            int lane) {
  Loader loader(a, shared, warp, lane);
  const bool leads = warp == 0;
  int ticket = 0;
  const auto draw = [&] {
    if (leads && lane == 0 && !a.own_schedule) {
      ticket = atomicAdd(&a.schedule.counters->ticket, 1);
    }
  };
  draw();
  for (std::uint32_t count = 0;; ++count) {
    const Item& item = shared.items[count & 3];
    if (leads) {
      write_item(a, shared, count, __shfl_sync(0xffffffffu, ticket, 0), lane);
      arch::wait(shared.queries_empty, ~count & 1);
      if (lane == 0) {
        if (item.exists()) {
          load_queries<Shape>(a, shared, item);
        } else {
          arch::arrive(shared.queries_full);
        }
      }
      __syncwarp();
    } else {
      arch::wait(shared.queries_full, count & 1);
      arch::arrive_warp(shared.queries_empty, lane);
    }
    if (!item.exists()) break;
    loader.load(item, draw);
  }
  loader.finish();
}

template <class Shape, class Loader, class Arguments>
__device__ __forceinline__ void produce(const Arguments& a, TileShared<Shape>& shared, int warp,
                                        int lane) {
  if constexpr (Loader::kOneCopy) {
    go_together<Shape, Loader>(a, shared, warp, lane);
  } else if (warp == 0) {
    lead<Shape, Loader>(a, shared, lane);
  } else if (warp < Loader::kWarps) {
    follow<Shape, Loader>(a, shared, warp, lane);
  }
}

}  // namespace hyla::attention
