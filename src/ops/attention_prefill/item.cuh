// One piece of work: a tile of queries of one row and KV head, and the keys it sees.
#pragma once

#include <hyla/attention_mask.h>

#include <cstdint>

#include "ops/attention_prefill/schedule.cuh"

namespace hyla::attention {

struct Item {
  int row = -1;  // < 0: there is no more work
  int head = 0;
  int token = 0;  // first of the tile, counted in the row
  int begin = 0, queries = 0, keys = 0;
  int seen_begin = 0, seen_end = 0;    // keys that some query sees
  int first_tile = 0, last_tile = -1;  // of keys
  int full_begin = 0, full_end = 0;    // tiles that every query sees whole
  int piece = 0, pieces = 1;           // of the tiles of keys
  int slot = -1;                       // where a piece's outputs go; < 0: to the output

  __device__ __forceinline__ bool exists() const { return row >= 0; }
};

// The last of `count` numbers that do not fall which is not greater than `target`. The first must
// not be greater. By a whole warp, 32 candidates at a time.
template <class At>
__device__ __forceinline__ int find_last(int count, int target, const At& at) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  int low = 0;
  while (count > 1) {
    const int step = (count + 31) / 32, offset = lane * step;
    const bool before = offset < count && at(low + offset) <= target;
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, before)));
    low += last * step;
    count = min(step, count - last * step);
  }
  return low;
}

// `place`: among the tickets of the row, whose items have so many pieces.
__device__ __forceinline__ Item item_of(const ScheduledRow& row, int place, int pieces,
                                        int tokens_per_tile, int ticket) {
  Item item;
  item.pieces = pieces;
  item.piece = place % pieces;
  if (pieces > 1) item.slot = ticket;
  item.row = row.row;
  item.token = place / pieces * tokens_per_tile;
  item.begin = row.begin;
  item.queries = row.queries;
  item.keys = row.keys;
  return item;
}

// By a whole warp. tile_keys: of a tile of keys.
__device__ __forceinline__ Item find_item(const Schedule& schedule, int kv_heads,
                                          int tokens_per_tile, int tile_keys, int ticket) {
  const int tiles = schedule.counters->tiles, piece_tiles = schedule.counters->piece_tiles;
  if (tiles == 0) return {};
  const int head = static_cast<int>(static_cast<unsigned>(ticket) / static_cast<unsigned>(tiles));
  if (head >= kv_heads) return {};
  const int target = ticket - head * tiles;
  const int low = find_last(schedule.count, target, [&](int i) { return schedule.first[i]; });
  const ScheduledRow row = schedule.rows[low];
  const int pieces =
      piece_tiles == kWhole ? 1 : pieces_of((row.keys + tile_keys - 1) / tile_keys, piece_tiles);
  Item item = item_of(row, schedule.first[low + 1] - 1 - target, pieces, tokens_per_tile, ticket);
  item.head = head;
  return item;
}

__device__ __forceinline__ KeyRange visible(const Mask& mask, const Item& item, int token) {
  return mask.visible(std::int64_t{item.keys} - item.queries + token, item.keys);
}

// All masks are intervals whose bounds do not fall with the position, so the first and the last
// query decide.
template <int Keys>
__device__ __forceinline__ void find_keys(Item& item, const Mask& mask, int tokens_per_tile) {
  const KeyRange first = visible(mask, item, item.token);
  const KeyRange last = visible(mask, item, min(item.token + tokens_per_tile, item.queries) - 1);
  item.seen_begin = static_cast<int>(first.begin);
  item.seen_end = static_cast<int>(last.end);
  if (item.seen_begin >= item.seen_end) return;
  item.first_tile = item.seen_begin / Keys;
  item.last_tile = (item.seen_end - 1) / Keys;
  item.full_begin = (static_cast<int>(last.begin) + Keys - 1) / Keys;
  item.full_end = static_cast<int>(first.end) / Keys;
  if (item.pieces == 1) return;
  const int tiles = item.last_tile - item.first_tile + 1, begin = item.first_tile;
  item.first_tile = begin + tiles * item.piece / item.pieces;
  item.last_tile = begin + tiles * (item.piece + 1) / item.pieces - 1;
  if (item.last_tile < item.first_tile) item.last_tile = -1;
}

}  // namespace hyla::attention
