// Who does what: every CTA finds its share from the lengths on the device.
//
// An item is one row's queries (a chunk of them where they are many) against the keys of one block
// of KV heads. Its keys are cut into units of 16 on a grid that starts at key 0. All units of the
// batch lie in a line, and the line is cut into equal shares, one a CTA.
#pragma once

#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

inline constexpr int kListed = 32;     // segments in the list at a time
inline constexpr int kLeastUnits = 4;  // of a share

// A CTA's part of an item.
struct Segment {
  const char* table;           // the row's pages
  std::uint32_t origin;        // without pages: steps to the row's first token,
  std::uint32_t scale_origin;  // and elements of the scales
  int begin, end;              // keys that may be seen; begin a multiple of 16
  int first_seen;              // keys before it are not read
  int first_head;              // of the block of KV heads
  int first_token;             // of the row's queries
  int first_row, rows;         // packed query rows of the chunk
  int position, keys;          // of the row's first query; keys of the row
  int piece;                   // -1: the whole item; 0, 1: as in Pieces
};

// Items of a row, all alike.
struct Items {
  int chunks = 0;  // 0: the row has none
  int units = 0, first_unit = 0;
  int first_token = 0, queries = 0, keys = 0;
};

template <class Shape>
__device__ __forceinline__ Items items_of(const Arguments& a, int row) {
  const QueryRows& q = a.q;
  Items items;
  const int begin = q.begins.at(row);
  int queries = q.lengths.present() ? q.lengths.at(row) : q.begins.at(row + 1) - begin;
  int room = a.cache.capacity;
  if (a.cache.kind == Kind::kRagged) {
    const int first = min(max(a.cache.begins.at(row), 0), room);
    room = min(max(a.cache.begins.at(row + 1) - first, 0), room - first);
  }
  items.keys = a.cache.lengths.present() ? min(max(a.cache.lengths.at(row), 0), room) : room;
  if (begin < 0 || begin > q.tokens) return items;
  queries = min(queries, q.tokens - begin);
  if (queries <= 0 || queries > q.most_packed / q.group) return items;
  items.queries = queries;
  items.first_token = begin;
  items.first_unit = a.sight.keys(items.keys - queries, items.keys).begin / kUnit;
  const int end = a.sight.keys(items.keys - 1, items.keys).end;
  // Zeros are to be written where there is nothing to see, too.
  items.units = max((end + kUnit - 1) / kUnit - items.first_unit, 1);
  items.chunks = (queries * q.group + Shape::kChunk - 1) / Shape::kChunk;
  return items;
}

// In shared memory.
template <class Shape>
struct WorkList {
  Segment segments[kListed];
  int2 sums[Shape::kWarps];
  int first_item, count;
  int4 entry[2];
};

// A CTA's place in the line, and a thread's rows.
struct Share {
  int first_row = 0, last_row = 0, units_before = 0, items_before = 0;
  Items items;  // of the thread's last row
  int begin = 0, end = 0, all_items = 0;
  int ctas = 0, least = 0, longer = 0;  // `longer` CTAs have one unit more than `least`

  __device__ __forceinline__ int begin_of(int cta) const { return cta * least + min(cta, longer); }
  __device__ __forceinline__ int cta_of(int unit) const {
    const int in_longer = longer * (least + 1);
    return unit < in_longer ? unit / (least + 1) : longer + (unit - in_longer) / least;
  }
  // Where a thread has one row, it is at hand.
  template <class Shape>
  __device__ __forceinline__ Items items_at(const Arguments& a, int row) const {
    return first_row + 1 == last_row ? items : items_of<Shape>(a, row);
  }
};

template <class Shape>
__device__ __forceinline__ Share find_share(const Arguments& a, WorkList<Shape>& list) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int blocks = a.cache.kv_heads / Shape::kHeads;
  Share share;
  const int each = (a.q.rows + Shape::kThreads - 1) / Shape::kThreads;
  share.first_row = min(thread * each, a.q.rows);
  share.last_row = min(share.first_row + each, a.q.rows);
  int units = 0, items = 0;
#pragma unroll 1
  for (int row = share.first_row; row < share.last_row; ++row) {
    share.items = items_of<Shape>(a, row);
    items += share.items.chunks * blocks;
    units += share.items.chunks * blocks * share.items.units;
  }
  int units_to = units, items_to = items;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other_units = __shfl_up_sync(0xffffffffu, units_to, step);
    const int other_items = __shfl_up_sync(0xffffffffu, items_to, step);
    if (lane >= step) units_to += other_units, items_to += other_items;
  }
  if (lane == 31) list.sums[warp] = make_int2(units_to, items_to);
  if (thread == 0) list.entry[0] = list.entry[1] = make_int4(0, 0, 0, 0);
  __syncthreads();
  share.units_before = units_to - units;
  share.items_before = items_to - items;
  int all = 0;
#pragma unroll
  for (int w = 0; w < Shape::kWarps; ++w) {
    const int2 sum = list.sums[w];
    if (w < warp) share.units_before += sum.x, share.items_before += sum.y;
    all += sum.x;
    share.all_items += sum.y;
  }
  share.ctas = min(max(all / kLeastUnits, 1), static_cast<int>(gridDim.x));
  share.least = all / share.ctas;
  share.longer = all - share.least * share.ctas;
  const int cta = static_cast<int>(blockIdx.x);
  if (cta < share.ctas) share.begin = share.begin_of(cta), share.end = share.begin_of(cta + 1);
  return share;
}

// The CTA's part of item `index` of a row, whose first unit is number `at` of the line.
template <class Shape>
__device__ __forceinline__ Segment make_segment(const Arguments& a, int row, const Items& items,
                                                int index, int at, const Share& share) {
  const QueryRows& q = a.q;
  const int from = max(share.begin - at, 0), to = min(share.end - at, items.units);
  const int block = items.chunks == 1 ? index : index / items.chunks;
  Segment segment;
  segment.first_row = (index - block * items.chunks) * Shape::kChunk;
  segment.rows = min(items.queries * q.group - segment.first_row, Shape::kChunk);
  segment.first_token = items.first_token;
  segment.first_head = block * Shape::kHeads;
  segment.position = items.keys - items.queries;
  segment.keys = items.keys;
  const auto sees = [&](int packed) {
    return a.sight.keys(segment.position + q.by_group(packed), items.keys);
  };
  segment.first_seen = sees(segment.first_row).begin;
  segment.begin = max((items.first_unit + from) * kUnit, segment.first_seen / kUnit * kUnit);
  segment.end =
      min((items.first_unit + to) * kUnit, sees(segment.first_row + segment.rows - 1).end);
  segment.piece = from > 0 ? 0 : to < items.units ? 1 : -1;
  const Cache& cache = a.cache;
  segment.table = cache.table + row * cache.table_row_bytes;
  if (cache.kind == Kind::kRagged) {
    const int first = min(max(cache.begins.at(row), 0), cache.capacity);
    segment.origin = static_cast<std::uint32_t>(first) * cache.token_steps;
    segment.scale_origin = static_cast<std::uint32_t>(first) * cache.scale_token;
  } else {
    segment.origin = static_cast<std::uint32_t>(row) * cache.outer_steps;
    segment.scale_origin = static_cast<std::uint32_t>(row) * cache.scale_outer;
  }
  return segment;
}

// Lists items from number `first` on that begin before the share's end, as many as fit; `have`
// of them are there already. Notes those that begin here for the kernel that adds up. No thread may still
// read the list before.
template <class Shape>
__device__ __forceinline__ void list_items(const Arguments& a, const Share& share, int first,
                                           int have, WorkList<Shape>& list) {
  const int cta = static_cast<int>(blockIdx.x);
  int at = share.units_before, item = share.items_before;
#pragma unroll 1
  for (int row = share.first_row; row < share.last_row && at < share.end; ++row) {
    const Items items = share.items_at<Shape>(a, row);
    const int count = items.chunks * (a.cache.kv_heads / Shape::kHeads);
#pragma unroll 1
    for (int i = max(first - item, 0); i < count && at + i * items.units < share.end; ++i) {
      const int item_at = at + i * items.units, listed = item + i - first;
      if (listed >= kListed) break;
      const Segment segment = make_segment<Shape>(a, row, items, i, item_at, share);
      if (listed >= have) list.segments[listed] = segment;
      atomicMax(&list.count, listed + 1);
      if (item_at < share.begin) continue;
      const int4 what =
          make_int4(segment.first_token, segment.first_head, segment.first_row, segment.rows);
      const int last = segment.piece < 0 ? cta : share.cta_of(item_at + items.units - 1);
      const int4 pieces = make_int4(segment.piece < 0 ? 0 : last - cta + 1, cta, 0, 0);
      if (a.pieces.by_item) {
        a.pieces.entries[2 * (item + i)] = what;
        a.pieces.entries[2 * (item + i) + 1] = pieces;
      } else if (segment.piece == 1) {
        list.entry[0] = what;
        list.entry[1] = pieces;
      }
    }
    at += count * items.units;
    item += count;
  }
  __syncthreads();
}

// Lists the segment at the share's begin; the others may be listed while its keys are on their way.
template <class Shape>
__device__ __forceinline__ void list_first(const Arguments& a, const Share& share,
                                           WorkList<Shape>& list) {
  int at = share.units_before, item = share.items_before;
#pragma unroll 1
  for (int row = share.first_row; row < share.last_row && at <= share.begin; ++row) {
    const Items items = share.items_at<Shape>(a, row);
    const int count = items.chunks * (a.cache.kv_heads / Shape::kHeads);
    const int row_end = at + count * items.units;
    if (row_end > share.begin) {
      const int i = (share.begin - at) / items.units;
      list.segments[0] = make_segment<Shape>(a, row, items, i, at + i * items.units, share);
      list.first_item = item + i;
      list.count = 1;
      break;
    }
    at = row_end;
    item += count;
  }
  __syncthreads();
}

}  // namespace hyla::attention::decode
