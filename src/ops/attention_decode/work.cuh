// Who does what: every CTA finds its share from the lengths on the device.
//
// An item is one row's queries (a chunk of them where they are many) against the keys of one block
// of KV heads. Its keys are cut into units of 16 on a grid that starts at key 0. All units of the
// batch lie in a line, and the line is cut into equal shares, one a CTA. The line passes all rows
// once for each block of heads, or once with all blocks of a row side by side (Shape::kByHeads).
// Where a row's bits must not depend on other rows, items are cut into parts by their own length,
// and a part is done by the CTA in whose share it begins.
#pragma once

#include "device/reduce.cuh"
#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

inline constexpr int kListed = 32;     // segments in the list at a time
inline constexpr int kLeastUnits = 4;  // of a share

// What a ring asks a segment with every unit: one access.
struct alignas(16) RingSegment {
  const char* table;  // the row's pages
  int first_seen;     // keys before it are not read
  int first_head;     // of the block of KV heads
};

// A CTA's part of an item.
struct Segment : RingSegment {
  std::uint32_t origin;        // without pages: steps to the row's first token (operands: the row),
  std::uint32_t scale_origin;  // and elements of the scales
  int begin, end;              // keys that may be seen; begin a multiple of 16
  int all_first, all_end;      // keys that every query sees
  int first_token;             // of the row's queries
  int first_row, rows;         // packed query rows of the chunk
  int position, keys;          // of the row's first query; keys of the row
  int before;                  // slot of the piece that comes before this; -1: none
  int piece;                   // slot; -1: these are the item's last keys, and nothing is missing
};

// One of some integers, on its way: all that a plan needs are asked for before one is waited for.
class AskedInt {
 public:
  __device__ __forceinline__ AskedInt(const Ints& from, int i) : wide_(from.wide) {
    if (!from.present()) return;
    const char* at = from.data + static_cast<std::int64_t>(i) * from.stride;
    low_ = load(at);
    if (wide_) high_ = load(at + 4);
  }
  __device__ __forceinline__ int value() const {
    if (!wide_) return low_;
    const bool small = high_ == 0 && static_cast<unsigned>(low_) < kMostTokens;
    return high_ < 0 ? -1 : small ? low_ : kMostTokens;
  }

 private:
  static __device__ __forceinline__ int load(const char* from) {
    int x;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
  }
  int low_ = 0, high_ = 0;
  bool wide_;
};

// First of the row's tokens in a ragged cache.
__device__ __forceinline__ int ragged_begin(const Cache& cache, int row) {
  return min(max(AskedInt(cache.begins, row).value(), 0), cache.capacity);
}

// A row's keys.
__device__ __forceinline__ int key_count(const Cache& cache, int row, const AskedInt& length) {
  int room = cache.capacity;
  if (cache.kind == Kind::kRagged) {
    const AskedInt end(cache.begins, row + 1);
    const int first = ragged_begin(cache, row);
    room = min(max(end.value() - first, 0), room - first);
  }
  return cache.lengths.present() ? min(max(length.value(), 0), room) : room;
}

// Items of a row, all alike.
struct Items {
  int chunks = 0;  // 0: the row has none
  int units = 0, first_unit = 0;
  int parts = 1, part_units = 0;  // the last may be shorter
  int first_token = 0, queries = 0, keys = 0;
};

template <class Shape>
__device__ __forceinline__ Items items_of(const Arguments& a, int row) {
  const QueryRows& q = a.q;
  Items items;
  const bool lengths = q.lengths.present();
  const AskedInt keys(a.cache.lengths, row);
  const AskedInt first(q.begins, row);
  const AskedInt last(lengths ? q.lengths : q.begins, lengths ? row : row + 1);
  const int begin = first.value();
  int queries = lengths ? last.value() : last.value() - begin;
  if constexpr (over_operands<Shape>) {
    items.keys = key_count(given<Shape>(a), row, queries);
  } else {
    items.keys = key_count(a.cache, row, keys);
  }
  if (begin < 0 || begin > q.tokens) return items;
  queries = min(queries, q.tokens - begin);
  if (queries <= 0 || queries > q.most_queries) return items;
  items.queries = queries;
  items.first_token = begin;
  items.first_unit = a.sight.keys(items.keys - queries, items.keys).begin / kUnit;
  const int end = a.sight.keys(items.keys - 1, items.keys).end;
  // Zeros are to be written where there is nothing to see, too.
  items.units = max((end + kUnit - 1) / kUnit - items.first_unit, 1);
  items.chunks = (queries * q.group + Shape::kChunk - 1) / Shape::kChunk;
  items.part_units = items.units;
  if (a.pieces.own_bits) {
    items.part_units = part_units(items.units);
    items.parts = (items.units + items.part_units - 1) / items.part_units;
  }
  return items;
}

// Blocks of KV heads; how often the line passes the rows; items of a row in a pass.
template <class Shape>
__device__ __forceinline__ int blocks_of(const Arguments& a) {
  return a.cache.kv_heads / Shape::kHeads;
}
template <class Shape>
__device__ __forceinline__ int passes_of(const Arguments& a) {
  return Shape::kByHeads ? blocks_of<Shape>(a) : 1;
}
template <class Shape>
__device__ __forceinline__ int count_of(const Arguments& a, const Items& items) {
  return Shape::kByHeads ? items.chunks : items.chunks * blocks_of<Shape>(a);
}

// Which block of heads, and which chunk of the row's queries, an item of a row in a pass is.
template <class Shape>
struct ItemPlace {
  int block, chunk;

  __device__ __forceinline__ ItemPlace(const Items& items, int pass, int item)
      : block(pass), chunk(item) {
    if constexpr (!Shape::kByHeads) {
      block = items.chunks == 1 ? item : item / items.chunks;
      chunk = item - block * items.chunks;
    }
  }
};

// How the line is cut: all of it, or each group of CTAs' part of it.
struct Cuts {
  int ctas, least, longer;  // the first `longer` CTAs have one unit more than `least`
  int group_units = 0;      // of a group; 0: there is but one
  int group = 0;            // CTAs

  Cuts() = default;
  __device__ __forceinline__ Cuts(int units, const Pieces& pieces)
      : ctas(min(max(units / kLeastUnits, 1), pieces.ctas)),
        least(ctas == pieces.ctas ? pieces.by_ctas(units) : units / ctas),
        longer(units - least * ctas) {}
  // Of items that are all as long.
  __device__ __forceinline__ Cuts(int item_units, const Even& even)
      : ctas(even.ctas),
        least(even.by_group(item_units * even.together)),
        longer(item_units * even.together - least * even.group),
        group_units(item_units * even.together),
        group(even.group) {}
  __device__ __forceinline__ int begin_of(int cta) const { return cta * least + min(cta, longer); }
  __device__ __forceinline__ int cta_of(int unit) const {
    int before = 0;
    if (group_units != 0) {
      const int index = unit / group_units;
      before = index * group;
      unit -= index * group_units;
    }
    const int in_longer = longer * (least + 1);
    return before + (unit < in_longer ? unit / (least + 1) : longer + (unit - in_longer) / least);
  }
};

// In shared memory.
template <class Shape>
struct WorkList {
  Segment segments[kListed];
  int2 sums[Shape::kWarps];
  int longest[Shape::kWarps];
  int begin, end;  // of the share
  int first_part, count;
  int4 entry[2];
};

// The threads that plan: all, or all but the last warp.
template <class Shape>
inline constexpr int kPlanners = Shape::kThreads - (Shape::kAhead ? 32 : 0);
template <int Threads>
__device__ __forceinline__ void meet_planners() {
  asm volatile("bar.sync 3, %0;" ::"n"(Threads) : "memory");
}

// What lies before a thread's, and all, of two numbers. `sums` [warps]
struct Scanned {
  int2 before, all;
};
template <int Threads>
__device__ __forceinline__ Scanned scan(int2 own, int2* sums) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  int2 to = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(0xffffffffu, to.x, step);
    const int y = __shfl_up_sync(0xffffffffu, to.y, step);
    if (lane >= step) to.x += x, to.y += y;
  }
  if (lane == 31) sums[warp] = to;
  meet_planners<Threads>();
  Scanned result{make_int2(to.x - own.x, to.y - own.y), make_int2(0, 0)};
#pragma unroll
  for (int w = 0; w < Threads / 32; ++w) {
    const int2 sum = sums[w];
    if (w < warp) result.before.x += sum.x, result.before.y += sum.y;
    result.all.x += sum.x, result.all.y += sum.y;
  }
  return result;
}

// Which rows a thread has.
template <int Threads>
__device__ __forceinline__ int2 rows_of_thread(int rows) {
  const int each = (rows + Threads - 1) / Threads;
  const int first = min(static_cast<int>(threadIdx.x) * each, rows);
  return make_int2(first, min(first + each, rows));
}

__device__ __forceinline__ void fetch_line(const char* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Page tables and queries are small and cold: all CTAs together bring them into L2 while lengths are
// read, before keys and values are in the way. Half of the threads have the one, half the other.
template <class Shape>
__device__ __forceinline__ void fetch_ahead(const Arguments& a) {
  constexpr int kLine = 128, kLinesOfCta = Shape::kThreads / 2;
  const Cache& cache = a.cache;
  const bool pages = !over_operands<Shape> && cache.kind == Kind::kPaged;
  const char* data = a.q.data;
  std::int64_t bytes = static_cast<std::int64_t>(a.q.tokens - 1) * a.q.token_bytes +
                       static_cast<std::int64_t>(a.q.heads - 1) * a.q.head_bytes + 2 * a.q.dim;
  if (pages && threadIdx.x < kLinesOfCta) {
    data = cache.table;
    bytes = (a.q.rows - 1) * cache.table_row_bytes +
            static_cast<std::int64_t>(cache.page_of(cache.capacity)) * cache.table_bytes;
  }
  const unsigned at = (threadIdx.x % kLinesOfCta * gridDim.x + blockIdx.x) * kLine;
  if (bytes > static_cast<int>(gridDim.x) * kLinesOfCta * kLine || at >= bytes) return;
  fetch_line(data + at);
}

// The first keys of a share, on their way into L2 before the share is known: those with which it
// would begin if all rows were as long as the one that it would then begin in. Where they are not,
// other CTAs find them there. For one warp, which the others do not wait for; little code, as theirs
// is fetched at the same time.
template <class Shape>
__device__ __forceinline__ void fetch_first_keys(const Arguments& a) {
  constexpr int kLine = 128, kGroups = Shape::kAheadKeys / 32;
  static_assert(Shape::kByHeads);
  const Cache& cache = a.cache;
  const Divider& by_ctas = a.pieces.by_ctas;
  const int ctas = a.pieces.ctas, blocks = blocks_of<Shape>(a);
  int rest = static_cast<int>(blockIdx.x) * blocks;
  const int block = by_ctas(rest);
  rest = (rest - block * ctas) * a.q.rows;
  const int row = by_ctas(rest);
  const AskedInt asked(cache.lengths, row);
  rest -= row * ctas;
  const char* table = cache.table + row * cache.table_row_bytes;
  const int length = key_count(cache, row, asked), units = (length + kUnit - 1) / kUnit;
  if (units * static_cast<std::int64_t>(a.q.rows) * blocks < ctas * kLeastAhead) return;
  const int first = by_ctas(rest * units) * kUnit + (static_cast<int>(threadIdx.x) & 31);
  std::uint32_t pages[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int key = first + i * 32;
    pages[i] = kNowhere;
    if (key < length) {
      pages[i] = *reinterpret_cast<const std::uint32_t*>(
          table + static_cast<std::int64_t>(cache.page_of(key)) * cache.table_bytes);
    }
  }
  const std::int64_t head = block * Shape::kHeads;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    if (pages[i] >= static_cast<std::uint32_t>(cache.outers)) continue;
    const int key = first + i * 32;
    const std::uint64_t steps =
        pages[i] * cache.outer_steps +
        static_cast<std::uint32_t>(key - cache.page_of(key) * cache.tokens) * cache.token_steps;
    const char* k = cache.k + head * cache.k_head_bytes + steps * cache.k_step;
    const char* v = cache.v + head * cache.v_head_bytes + steps * cache.v_step;
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h, k += cache.k_head_bytes, v += cache.v_head_bytes) {
#pragma unroll
      for (int line = 0; line < Shape::kRowBytes; line += kLine) fetch_line(k + line);
#pragma unroll
      for (int line = 0; line < Shape::kRowBytes; line += kLine) fetch_line(v + line);
    }
  }
}

// A CTA's place in the line, and a thread's rows.
struct Share {
  int first_row = 0, last_row = 0, units_before = 0, parts_before = 0;  // in each pass
  Items items;                                                          // of the thread's last row
  int pass_units = 0, pass_parts = 0;
  int pass = 0, begin = 0, end = 0;  // pass: in which it begins
  Cuts cuts;

  // Where a thread has one row, it is at hand.
  template <class Shape>
  __device__ __forceinline__ Items items_at(const Arguments& a, int row) const {
    return first_row + 1 == last_row ? items : items_of<Shape>(a, row);
  }
};

template <class Shape>
__device__ __forceinline__ Share find_share(const Arguments& a, WorkList<Shape>& list) {
  const int passes = passes_of<Shape>(a);
  Share share;
  const int2 rows = rows_of_thread<kPlanners<Shape>>(a.q.rows);
  share.first_row = rows.x;
  share.last_row = rows.y;
  int2 own = make_int2(0, 0);
  int longest = 0;
#pragma unroll 1
  for (int row = share.first_row; row < share.last_row; ++row) {
    share.items = items_of<Shape>(a, row);
    longest = max(longest, share.items.units);
    const int items = count_of<Shape>(a, share.items);
    own.x += items * share.items.units;
    own.y += items * share.items.parts;
  }
  if (threadIdx.x == 0) list.entry[0] = list.entry[1] = make_int4(0, 0, 0, 0);
  if constexpr (Shape::kEvenItems) {
    longest = __reduce_max_sync(0xffffffffu, longest);
    if ((threadIdx.x & 31) == 0) list.longest[threadIdx.x >> 5] = longest;
  }
  const Scanned scanned = scan<kPlanners<Shape>>(own, list.sums);
  share.units_before = scanned.before.x;
  share.parts_before = scanned.before.y;
  share.pass_units = scanned.all.x;
  share.pass_parts = scanned.all.y;
  const int units = scanned.all.x * passes;
  share.cuts = Cuts(units, a.pieces);
  int cta = static_cast<int>(blockIdx.x), before = 0;
  if constexpr (Shape::kEvenItems) {
    const Even& even = a.pieces.even;
#pragma unroll
    for (int warp = 0; warp < kPlanners<Shape> / 32; ++warp) {
      longest = max(longest, list.longest[warp]);
    }
    if (scanned.all.y * passes == even.items && longest >= even.group * kLeastUnits &&
        static_cast<std::int64_t>(longest) * even.items == units) {
      share.cuts = Cuts(longest, even);
      if (cta >= even.ctas) return share;
      const int index = even.by_group(cta);
      before = index * share.cuts.group_units;
      cta -= index * even.group;
    }
  }
  if (cta < share.cuts.ctas) {
    share.begin = before + share.cuts.begin_of(cta);
    share.end = before + share.cuts.begin_of(cta + 1);
    if (passes > 1) share.pass = share.begin / max(share.pass_units, 1);
  }
  return share;
}

// Part `index` of a row's in a pass: where it begins in the line, after the row's first.
struct Part {
  int item, number, begin;

  __device__ __forceinline__ Part(const Items& items, int index)
      : item(items.parts == 1 ? index : index / items.parts),
        number(index - item * items.parts),
        begin(item * items.units + number * items.part_units) {}
};

// The CTA's part `index` of a row in a pass, `listed` after the first of the CTA; `at`: the row's
// first unit in the line.
template <class Shape>
__device__ __forceinline__ Segment make_segment(const Arguments& a, int row, const Items& items,
                                                int pass, int index, int listed, int at,
                                                const Share& share) {
  const QueryRows& q = a.q;
  const Part part(items, index);
  const int item_at = at + part.item * items.units;
  const int slot = a.pieces.slots * static_cast<int>(blockIdx.x);
  int from, to;
  Segment segment;
  segment.before = -1;
  if (a.pieces.own_bits) {
    from = part.number * items.part_units;
    to = min(from + items.part_units, items.units);
    segment.piece = slot + 2 + a.pieces.later(listed);
    // Threads add what others noted: a sum is not written where the one before it may still be
    // read.
    if (item_at >= share.begin) {
      if (from > 0) segment.before = slot + ((part.number - 1) & 1);
      segment.piece = to < items.units ? slot + (part.number & 1) : -1;
    }
  } else {
    from = max(share.begin - item_at, 0);
    to = min(share.end - item_at, items.units);
    segment.piece = from > 0 ? slot + 1 : to < items.units ? slot : -1;
  }
  const ItemPlace<Shape> place(items, pass, part.item);
  segment.first_row = place.chunk * Shape::kChunk;
  segment.rows = min(items.queries * q.group - segment.first_row, Shape::kChunk);
  segment.first_token = items.first_token;
  segment.first_head = place.block * Shape::kHeads;
  segment.position = items.keys - items.queries;
  segment.keys = items.keys;
  const auto sees = [&](int packed) {
    return a.sight.keys(segment.position + q.by_group(packed), items.keys);
  };
  const Sight::Range first = sees(segment.first_row);
  const Sight::Range last = sees(segment.first_row + segment.rows - 1);
  segment.first_seen = first.begin;
  segment.all_first = last.begin;
  segment.all_end = first.end;
  segment.begin = max((items.first_unit + from) * kUnit, segment.first_seen / kUnit * kUnit);
  segment.end = min((items.first_unit + to) * kUnit, last.end);
  if constexpr (over_operands<Shape>) {
    segment.origin = static_cast<std::uint32_t>(row);
    return segment;
  }
  const Cache& cache = a.cache;
  segment.table = cache.table + row * cache.table_row_bytes;
  if (cache.kind == Kind::kRagged) {
    const auto begin = static_cast<std::uint32_t>(ragged_begin(cache, row));
    segment.origin = begin * cache.token_steps;
    segment.scale_origin = begin * cache.scale_token;
  } else {
    segment.origin = static_cast<std::uint32_t>(row) * cache.outer_steps;
    segment.scale_origin = static_cast<std::uint32_t>(row) * cache.scale_outer;
  }
  return segment;
}

// Notes an item that begins here for the kernel that adds up.
template <class Shape>
__device__ __forceinline__ void note_item(const Arguments& a, const Share& share, int item_at,
                                          int units, int item, const Segment& segment,
                                          WorkList<Shape>& list) {
  const int cta = static_cast<int>(blockIdx.x);
  const int last = segment.piece < 0 ? cta : share.cuts.cta_of(item_at + units - 1);
  const int4 what =
      make_int4(segment.first_token, segment.first_head, segment.first_row, segment.rows);
  const int4 pieces = make_int4(segment.piece < 0 ? 0 : last - cta + 1, cta, 0, 0);
  if (a.pieces.by_item) {
    a.pieces.entries[2 * item] = what;
    a.pieces.entries[2 * item + 1] = pieces;
  } else if (segment.piece >= 0) {
    list.entry[0] = what;
    list.entry[1] = pieces;
  }
}

// Lists parts from number `first` on that begin before the share's end, as many as fit; `have` of
// them are there already. No thread may still read the list before.
template <class Shape>
__device__ __forceinline__ void list_parts(const Arguments& a, const Share& share, int first,
                                           int have, WorkList<Shape>& list) {
  const int passes = passes_of<Shape>(a);
#pragma unroll 1
  for (int pass = share.pass; pass < passes; ++pass) {
    int at = pass * share.pass_units + share.units_before;
    int number = pass * share.pass_parts + share.parts_before;
    if (at >= share.end) break;
#pragma unroll 1
    for (int row = share.first_row; row < share.last_row && at < share.end; ++row) {
      const Items items = share.items_at<Shape>(a, row);
      const int count = count_of<Shape>(a, items);
#pragma unroll 1
      for (int i = max(first - number, 0); i < count * items.parts; ++i) {
        const int listed = number + i - first, begin = at + Part(items, i).begin;
        if (listed >= kListed || begin >= share.end) break;
        const Segment segment =
            make_segment<Shape>(a, row, items, pass, i, number + i - list.first_part, at, share);
        if (listed >= have) list.segments[listed] = segment;
        atomicMax(&list.count, listed + 1);
        if (!a.pieces.own_bits && begin >= share.begin) {
          note_item<Shape>(a, share, begin, items.units, number + i, segment, list);
        }
      }
      at += count * items.units;
      number += count * items.parts;
    }
  }
  __syncthreads();
}

// Lists the segment at the share's begin; the others may be listed while its keys are on their way.
template <class Shape>
__device__ __forceinline__ void list_first(const Arguments& a, const Share& share,
                                           WorkList<Shape>& list) {
  int at = share.pass * share.pass_units + share.units_before;
  int number = share.pass * share.pass_parts + share.parts_before;
#pragma unroll 1
  for (int row = share.first_row; row < share.last_row && at <= share.begin; ++row) {
    const Items items = share.items_at<Shape>(a, row);
    const int count = count_of<Shape>(a, items), row_end = at + count * items.units;
    if (row_end > share.begin) {
      const int i = Shape::kByHeads && count == 1 ? 0 : (share.begin - at) / items.units;
      list.segments[0] = make_segment<Shape>(a, row, items, share.pass, i, 0, at, share);
      list.first_part = number + i;
      list.count = 1;
      break;
    }
    at = row_end;
    number += count;
  }
  meet_planners<kPlanners<Shape>>();
}

// The number of a thread's first part that begins in the share, where parts are not cut by shares.
template <class Shape>
__device__ __forceinline__ int own_first_part(const Arguments& a, const Share& share) {
  const int passes = passes_of<Shape>(a);
#pragma unroll 1
  for (int pass = share.pass; pass < passes; ++pass) {
    int at = pass * share.pass_units + share.units_before;
    int number = pass * share.pass_parts + share.parts_before;
#pragma unroll 1
    for (int row = share.first_row; row < share.last_row; ++row) {
      if (at >= share.end) return INT32_MAX;
      const Items items = share.items_at<Shape>(a, row);
      const int count = count_of<Shape>(a, items), row_end = at + count * items.units;
      if (row_end > share.begin) {
        int i = 0;
        if (share.begin > at) {
          const int item = (share.begin - at) / items.units;
          const int rest = share.begin - at - item * items.units;
          i = item * items.parts + (rest + items.part_units - 1) / items.part_units;
        }
        if (i < count * items.parts && at + Part(items, i).begin < share.end) {
          return number + i;
        }
      }
      at = row_end;
      number += count * items.parts;
    }
  }
  return INT32_MAX;
}

// The same of the CTA. The list is empty.
template <class Shape>
__device__ __forceinline__ int first_whole_part(const Arguments& a, const Share& share,
                                                WorkList<Shape>& list) {
  if (threadIdx.x == 0) list.first_part = INT32_MAX, list.count = 0;
  __syncthreads();
  const int own = own_first_part<Shape>(a, share);
  if (own != INT32_MAX) atomicMin(&list.first_part, own);
  __syncthreads();
  return list.first_part;
}

}  // namespace hyla::attention::decode
