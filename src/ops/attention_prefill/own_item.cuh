// Small calls, whose items all run at once, go without the kernel that makes the schedule: every
// CTA computes it, by one warp, and takes the item of its own number.
#pragma once

#include "ops/attention_prefill/arguments.cuh"

namespace hyla::attention {

inline constexpr int kMostOwnRows = 32;  // a lane each

// The schedule as schedule_rows would make it, a lane a row.
struct OwnSchedule {
  ScheduledRow row;
  int place;              // of the row in their order
  int key_tiles, pieces;  // pieces: of each of its items
  int first, tickets;     // of the row
  int total, piece_tiles;
};

// By a whole warp.
template <class Arguments>
__device__ __forceinline__ OwnSchedule own_schedule(const Arguments& a) {
  const auto from = [](int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); };
  const int lane = static_cast<int>(threadIdx.x) & 31, count = a.schedule.count;
  OwnSchedule own{};
  own.row.row = lane;
  int tiles = 0;
  if (lane < count) {
    own.row = describe_row(a, lane);
    tiles = query_tiles_of(a, own.row);
  }
  const int weight = tiles > 0 ? own.row.keys : -1;
  own.key_tiles = (own.row.keys + a.tile_keys - 1) / a.tile_keys;
  own.piece_tiles = kWhole;
  const int ours = __popc(__ballot_sync(0xffffffffu, tiles > 0));
  if (ours > 0 && ours * a.kv_heads <= a.most_pieces) {
    const int longest = __reduce_max_sync(0xffffffffu, tiles > 0 ? own.key_tiles : 0);
    own.piece_tiles = choose_piece(longest, count, a.kv_heads, a.most_pieces, [&](int i) {
      return int2{from(own.key_tiles, i), from(tiles, i)};
    });
  }
  own.pieces = pieces_of(own.key_tiles, own.piece_tiles);
  own.tickets = tiles * own.pieces;
  for (int i = 0; i < count; ++i) {
    const int other = from(weight, i), tickets = from(own.tickets, i);
    const bool before = other > weight || (other == weight && i < lane);
    own.place += before;
    own.first += before ? tickets : 0;
  }
  own.total = __reduce_add_sync(0xffffffffu, own.tickets);
  return own;
}

// What the kernel that adds up the pieces reads.
__device__ __forceinline__ void publish(const Schedule& schedule, const OwnSchedule& own) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (lane < schedule.count) {
    schedule.rows[own.place] = own.row;
    schedule.first[own.place] = own.first;
  }
  if (lane == 0) {
    schedule.first[schedule.count] = own.total;
    *schedule.counters = {0, own.total, own.piece_tiles, 0};
  }
}

// By a whole warp, for the item with this ticket.
template <class Shape, class Arguments>
__device__ __forceinline__ void write_own_item(const Arguments& a, TileShared<Shape>& shared,
                                               int ticket) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const OwnSchedule own = own_schedule(a);
  if (ticket == 0 && a.most_pieces > 0) publish(a.schedule, own);
  const int head = own.total > 0 ? ticket / own.total : a.kv_heads;
  const int inside = ticket - head * own.total - own.first;
  const bool mine = head < a.kv_heads && inside >= 0 && inside < own.tickets;
  if (mine) {
    Item item = item_of(own.row, own.tickets - 1 - inside, own.pieces, a.tokens_per_tile, ticket);
    item.head = head;
    find_keys<Shape::kKeys>(item, a.mask, a.tokens_per_tile);
    shared.items[0] = item;
  }
  if (!__any_sync(0xffffffffu, mine) && lane == 0) shared.items[0] = Item();
}

}  // namespace hyla::attention
