// Who computes what. A one-CTA kernel reads the lengths, leaves out the rows that are not ours,
// sorts the others by their number of keys and counts their tiles of queries; the CTAs of the main
// kernel then draw tickets. Items do not depend on each other, so the order of the draw changes no
// bit.
//
// Ticket order: KV heads outermost (what is alive in L2 stays small), then rows, most keys first,
// then tiles of queries from the end of the row, which under a causal mask is the longest first.
//
// Where there are fewer items than multiprocessors, items are cut along the keys into pieces of at
// most `piece_tiles` tiles, each with a ticket of its own.
#pragma once

#include <hyla/attention_mask.h>
#include <hyla/index_span.h>

#include <cstdint>

#include "arch/grid_dependency.cuh"
#include "ops/attention_prefill/region.h"

namespace hyla::attention {

struct ScheduledRow {
  int row, begin, queries, keys;  // begin: of its queries in the batch
};

// In the workspace: counters, rows [N], first ticket of each row [N + 1].
struct Schedule {
  struct Counters {
    int ticket, tiles;  // tiles: of one KV head, each of its pieces counted
    int piece_tiles;    // of keys; kWhole: nothing is cut
    int widened;        // rows of the workspace that hold keys
  };
  Counters* counters;
  ScheduledRow* rows;
  int* first;
  int count;  // N

  static constexpr std::int64_t kHeader = 16;
  static std::int64_t bytes(std::int64_t rows) {
    return kHeader + rows * static_cast<std::int64_t>(sizeof(ScheduledRow)) + 4 * (rows + 1);
  }
  static Schedule in(void* memory, std::int64_t rows) {
    char* bytes = static_cast<char*>(memory);
    Schedule schedule;
    schedule.counters = reinterpret_cast<Counters*>(bytes);
    schedule.rows = reinterpret_cast<ScheduledRow*>(bytes + kHeader);
    schedule.first = reinterpret_cast<int*>(bytes + kHeader +
                                            rows * static_cast<std::int64_t>(sizeof(ScheduledRow)));
    schedule.count = static_cast<int>(rows);
    return schedule;
  }
};

inline constexpr int kScheduleThreads = 1024;
inline constexpr int kWhole = 1 << 30;
inline constexpr int kMostWidenedTiles = 1 << 20;  // sums of 1024 such numbers stay below 2^31
inline constexpr int kLeastPieceTiles = 4;         // shorter pieces cost more than they bring

// Pieces of each item of a row with so many tiles of keys.
__device__ __forceinline__ int pieces_of(int key_tiles, int piece_tiles) {
  return key_tiles > piece_tiles ? (key_tiles + piece_tiles - 1) / piece_tiles : 1;
}
inline constexpr int kMostKeys = 1 << 30;  // of a row; int32 arithmetic on positions stays exact

struct ScheduleInputs {
  IndexSpan cu_seqlens, starts, lengths;
  Schedule schedule;
  std::int64_t more_than;  // packed queries that a row must exceed to be ours
  int total, group, tokens_per_tile;
  int tile_keys, kv_heads;
  int most_pieces;  // of all items together; 0: nothing is cut
};

template <class Keys>
struct ScheduleArguments : ScheduleInputs {
  Keys keys;
};

// The shortest pieces that run at once, by one warp: lane l tries to cut the longest item in l + 1.
// at(i): tiles of keys and of queries of a row, which is ours or has none of the latter.
template <class At>
__device__ __forceinline__ int choose_piece(int longest, int count, int kv_heads, int most_pieces,
                                            const At& at) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int tiles = max((longest + lane) / (lane + 1), kLeastPieceTiles);
  int pieces = 0;
  for (int i = 0; i < count; ++i) {
    const int2 row = at(i);
    pieces += row.y * pieces_of(row.x, tiles);
  }
  const bool fits = pieces * kv_heads <= most_pieces;
  const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, fits)));
  return last <= 0 ? kWhole : __shfl_sync(0xffffffffu, tiles, last);
}

__device__ __forceinline__ int clamped(std::int64_t x, int most) {
  return static_cast<int>(x < 0 ? 0 : x > most ? most : x);
}

// Whatever the offsets say, queries stay inside the batch.
template <class Arguments>
__device__ __forceinline__ ScheduledRow describe_row(const Arguments& a, int row) {
  const bool offsets = a.cu_seqlens.present();
  const std::int64_t begin = offsets ? a.cu_seqlens.at(row) : a.starts.at(row);
  const std::int64_t length = offsets ? a.cu_seqlens.at(row + 1) - begin : a.lengths.at(row);
  ScheduledRow result;
  result.row = row;
  result.begin = clamped(begin, a.total);
  result.queries = clamped(length, a.total - result.begin);
  result.keys = clamped(a.keys.length(row, result.queries), kMostKeys);
  return result;
}

// Tiles of queries of a row; 0: it is not ours.
template <class Arguments>
__device__ __forceinline__ int query_tiles_of(const Arguments& a, const ScheduledRow& row) {
  if (static_cast<std::int64_t>(row.queries) * a.group <= a.more_than) return 0;
  if constexpr (requires { a.keys.leaves(row.row); }) {
    if (a.keys.leaves(row.row)) return 0;
  }
  return (row.queries + a.tokens_per_tile - 1) / a.tokens_per_tile;
}

// Sum over the threads before this one; `total` over all.
__device__ __forceinline__ int exclusive_sum(int x, int (&warp_sums)[32], int& total) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < 32; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();
  return before + sum - x;
}

// Keys that choose rows (WidenedRows) take those of enough queries, in their order, as long as
// there is room, which is counted in tiles. Where it is not enough for all that want it, those that
// have some must be enough to fill the machine: the others follow in a launch of their own. By all
// threads; `tiles`: of the row's queries, 0: it is not ours.
struct RegionSums {
  int before;  // tiles of keys wanted by the rows in front of these
  int taken;
  int queries;  // tiles of those that have room
};
template <class Keys>
__device__ __forceinline__ bool choose_region(const ScheduleArguments<Keys>& a,
                                              const ScheduledRow& row, bool exists, int tiles,
                                              int (&warp_sums)[32], RegionSums& sums) {
  const int room = a.keys.room / a.tile_keys;  // up to kMostWidenedTiles
  const int before = sums.before;
  Region region{};
  int size = 0;
  if (tiles > 0 && static_cast<std::int64_t>(row.queries) * a.group >= a.keys.least) {
    region = a.keys.wanted(row.queries, row.keys, a.tile_keys);
    size = min((region.end - region.first + a.tile_keys - 1) / a.tile_keys, room + 1);
  }
  int total;
  const int begin = min(before + exclusive_sum(size, warp_sums, total), room + 1);
  const bool fits = begin + size <= room;
  if (threadIdx.x == 0) sums.before = min(before + total, room + 1), sums.queries = 0;
  const bool all = __syncthreads_and(fits || region.chosen == 0) != 0;
  if (!fits) region.chosen = 0;
  if (region.chosen != 0) atomicAdd(&sums.queries, tiles);
  __syncthreads();
  if (!all && sums.queries < a.keys.enough) region.chosen = 0;
  if (region.chosen != 0) atomicMax(&sums.taken, begin + size);
  region.begin = begin * a.tile_keys;
  if (exists) a.keys.regions[row.row] = region;
  __syncthreads();
  return region.chosen != 0;
}

template <class Keys>
__global__ void __launch_bounds__(kScheduleThreads, 1)
    schedule_rows(const __grid_constant__ ScheduleArguments<Keys> a) {
  __shared__ int weight[kScheduleThreads], tiles_of[kScheduleThreads], key_tiles[kScheduleThreads];
  __shared__ int warp_sums[32], piece_tiles;
  __shared__ RegionSums regions;
  // The kernel that widens gains nothing by an early start.
  if constexpr (!requires { a.keys.regions; }) arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const Schedule& schedule = a.schedule;
  const int thread = static_cast<int>(threadIdx.x);
  const bool sorted = schedule.count <= kScheduleThreads;  // beyond that in the order given
  if (thread == 0) piece_tiles = kWhole, regions = {};
  __syncthreads();
  int tiles = 0;
  for (int base = 0; base < schedule.count; base += kScheduleThreads) {
    const int i = base + thread;
    const bool mine = i < schedule.count;
    ScheduledRow row{};
    int own = 0;
    if (mine) {
      row = describe_row(a, i);
      own = query_tiles_of(a, row);
    }
    if constexpr (requires { a.keys.regions; }) {
      if (!choose_region(a, row, mine, own, warp_sums, regions)) own = 0;
    }
    weight[thread] = own > 0 ? row.keys : -1;
    __syncthreads();
    int place = thread;
    if (sorted && mine) {
      place = 0;
      for (int j = 0; j < schedule.count; ++j) {
        place += weight[j] > weight[thread] || (weight[j] == weight[thread] && j < thread);
      }
    }
    tiles_of[place] = mine ? own : 0;
    key_tiles[place] = (row.keys + a.tile_keys - 1) / a.tile_keys;
    if (mine) schedule.rows[base + place] = row;
    const int ours = __syncthreads_count(own > 0);
    if (sorted && ours > 0 && ours * a.kv_heads <= a.most_pieces) {
      if (thread < 32) {
        const int chosen = choose_piece(key_tiles[0], ours, a.kv_heads,
                                        a.most_pieces,  // longest first
                                        [&](int j) {
                                          return int2{key_tiles[j], tiles_of[j]};
                                        });
        if (thread == 0) piece_tiles = chosen;
      }
      __syncthreads();
      tiles_of[thread] *= pieces_of(key_tiles[thread], piece_tiles);
    }
    int total;
    const int first = tiles + exclusive_sum(tiles_of[thread], warp_sums, total);
    if (mine) schedule.first[i] = first;
    tiles += total;
    __syncthreads();
  }
  if (thread == 0) {
    schedule.first[schedule.count] = tiles;
    schedule.counters->ticket = 0;
    schedule.counters->tiles = tiles;
    schedule.counters->piece_tiles = piece_tiles;
    schedule.counters->widened = regions.taken * a.tile_keys;
  }
}

}  // namespace hyla::attention
