// Adds up the pieces of queries whose keys several CTAs saw, always in the same order.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/attention_decode/finish.cuh"
#include "ops/attention_decode/work.cuh"

namespace hyla::attention::decode {

inline constexpr int kCombineThreads = 256;

// An item whose keys several CTAs saw, and where its pieces are: the first is the last of the CTA
// that begins the item, the others are the first of those that follow.
struct Entry {
  int4 what = {}, where = {};

  Entry() = default;
  __device__ __forceinline__ Entry(const Pieces& pieces, int index)
      : what(__ldcg(pieces.entries + index * 2)), where(__ldcg(pieces.entries + index * 2 + 1)) {
    if (pieces.by_item && index >= __ldcg(pieces.items)) where.x = 0;
  }
  __device__ __forceinline__ int pieces() const { return where.x; }
  __device__ __forceinline__ int slot(int piece) const { return slot_of_piece(where.y, piece); }
  // Are the pieces where the other says they are?
  __device__ __forceinline__ bool same_places(const Entry& other) const {
    return where.x == other.where.x && where.y == other.where.y;
  }
  template <class Shape>
  __device__ __forceinline__ QueryRow query(const Arguments& a, int row) const {
    return query_row<Shape>(a, what.x, what.y, what.z, what.w, row);
  }
};

// Does this CTA start while the kernel before it runs, where an SM takes `of_sm` of them beside?
// Such a CTA goes once through all it will do, with whatever it finds, so that its instructions and
// the places of pieces are at hand when the last CTA of that kernel is done.
template <class Shape>
__device__ __forceinline__ bool starts_early(const Pieces& pieces, int of_sm) {
  if (!Shape::kRoomBeside) return false;
  const unsigned before = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  return before < static_cast<unsigned>(of_sm * pieces.ctas);
}

// Few pieces an item: a thread has four columns of one row. Grid: (CTAs, rows / kRowsAtOnce).
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_rows(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kRowsAtOnce = kCombineThreads / kLanes, kAtOnce = 4;
  arch::let_next_grid_start();
  const int index = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
  const int row =
      static_cast<int>(blockIdx.y) * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  const int read_row = min(row, Shape::kRows - 1);
  Added sum;
  QueryRow query;
  int pieces;
#pragma unroll 1
  for (int pass = starts_early<Shape>(a.pieces, 2) ? 0 : 1; pass < 2; ++pass) {
    if (pass == 1) arch::wait_for_previous_grid();
    // Most often there are two pieces. Where they would be is known before the entry is there.
    const Added first = piece_at<Shape>(a.pieces, slot_of_piece(index, 0), read_row, column);
    const Added second = piece_at<Shape>(a.pieces, slot_of_piece(min(index, a.pieces.ctas - 2), 1),
                                         read_row, column);
    const Entry entry(a.pieces, index);
    query = entry.query<Shape>(a, row);
    pieces = entry.pieces();
    sum = {};
    sum.add(first.all, first.x);
    sum.add(second.all, second.x);
#pragma unroll 1
    for (int done = 2; pass == 1 && done < pieces; done += kAtOnce) {
      Added more[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int piece = min(done + i, pieces - 1);
        more[i] = piece_at<Shape>(a.pieces, entry.slot(piece), read_row, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (done + i < pieces) sum.add(more[i].all, more[i].x);
      }
    }
  }
  if (row >= Shape::kRows || pieces == 0 || query.token < 0) return;
  write_out(a.out, query, sum.all, column, sum.x);
}

// Of many rows, of which a call may have few: a thread has four columns of two of them at a time,
// and two neighbours of which mostly one begins an item. Grid: (CTAs / 2, kManyTimes), as many as
// SMs take at once.
inline constexpr int kManyTimes = 4;
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads, 4)
    attention_combine_many(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kRowsAtOnce = kCombineThreads / kLanes, kAtOnce = 2;
  constexpr int kManyRows = kManyTimes * kRowsAtOnce;
  static_assert(Shape::kHeads == 1);
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
  const int first =
      static_cast<int>(blockIdx.y) * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  const int index = 2 * static_cast<int>(blockIdx.x);
  Entry entry(a.pieces, index);
  Entry next;
  if (index + 1 < a.pieces.ctas) next = Entry(a.pieces, index + 1);
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    if (which == 1) entry = next;
    const int pieces = entry.pieces(), rows = entry.what.w;
    if (pieces == 0) continue;
#pragma unroll 1
    for (int row = first; row < rows; row += 2 * kManyRows) {
      const int other = min(row + kManyRows, Shape::kRows - 1);
      Added sum[2];
#pragma unroll 1
      for (int done = 0; done < pieces; done += kAtOnce) {
        Added more[kAtOnce][2];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (done + i >= pieces) continue;
          const int slot = entry.slot(done + i);
          more[i][0] = piece_at<Shape>(a.pieces, slot, row, column);
          if (other < rows) more[i][1] = piece_at<Shape>(a.pieces, slot, other, column);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (done + i >= pieces) continue;
          sum[0].add(more[i][0].all, more[i][0].x);
          sum[1].add(more[i][1].all, more[i][1].x);
        }
      }
      write_out(a.out, entry.query<Shape>(a, row), sum[0].all, column, sum[0].x);
      if (other < rows) {
        write_out(a.out, entry.query<Shape>(a, other), sum[1].all, column, sum[1].x);
      }
    }
  }
}

// Of N sums, and of lanes kLanes, 2 * kLanes, ... apart: all maxima first, so that nothing waits
// for more than one exponential.
template <int kLanes, int N>
__device__ __forceinline__ Added add_lanes(Added (&sums)[N]) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < N; ++i) top = fmaxf(top, sums[i].all.top);
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    top = fmaxf(top, __shfl_xor_sync(device::kFullWarp, top, step));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i].raise(top);
  Added sum = sums[0];
#pragma unroll
  for (int i = 1; i < N; ++i) sum.add_raised(sums[i]);
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    Added other;
    other.all.sum = __shfl_xor_sync(device::kFullWarp, sum.all.sum, step);
#pragma unroll
    for (int c = 0; c < 4; ++c) other.x[c] = __shfl_xor_sync(device::kFullWarp, sum.x[c], step);
    sum.add_raised(other);
  }
  return sum;
}

// Many pieces an item: slices of a CTA, eight lanes each, take pieces of one row in turns. Grid:
// (entries, rows, D / kPieceColumns).
inline constexpr int kPieceColumns = 32;
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_pieces(const __grid_constant__ Arguments a) {
  constexpr int kLanes = kPieceColumns / 4, kSlices = kCombineThreads / kLanes, kAtOnce = 3;
  constexpr int kWarps = kCombineThreads / 32;
  static_assert(kWarps * kLanes <= 32 * kAtOnce);
  __shared__ float4 values[kWarps][kLanes];
  __shared__ Softmax sums[kWarps];
  arch::let_next_grid_start();
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y);
  const int slice = thread / kLanes, warp = thread / 32, lane = thread % 32;
  const int column = static_cast<int>(blockIdx.z) * kPieceColumns + thread % kLanes * 4;
  Added sum;
  bool waited = !starts_early<Shape>(a.pieces, 2);
  if (waited) arch::wait_for_previous_grid();
  Entry guess(a.pieces, static_cast<int>(blockIdx.x)), entry;
  if (waited && row % Shape::kChunk >= guess.what.w) return;
#pragma unroll 1
  for (;; waited = true) {
    if (waited) arch::wait_for_previous_grid();
    entry = Entry(a.pieces, static_cast<int>(blockIdx.x));
    const int pieces = min(guess.pieces(), a.pieces.ctas);
    Added own[kAtOnce];
#pragma unroll 1
    for (int first = slice; first < pieces; first += kAtOnce * kSlices) {
      Added more[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int piece = first + i * kSlices;
        // A guess may be anything.
        const int slot = min(max(guess.slot(piece), 0), 2 * a.pieces.ctas - 1);
        if (piece < pieces) more[i] = piece_at<Shape>(a.pieces, slot, row, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) own[i].add(more[i].all, more[i].x);
    }
    sum = add_lanes<kLanes>(own);
    __syncthreads();  // what was there has been read
    if (lane < kLanes) {
      values[warp][lane] = make_float4(sum.x[0], sum.x[1], sum.x[2], sum.x[3]);
      sums[warp] = sum.all;
    }
    const bool wrong = __syncthreads_or(!guess.same_places(entry)) != 0;
    guess = entry;
    if (warp == 0) {
      constexpr int kGroups = 32 / kLanes;
#pragma unroll
      for (int i = 0; i < kWarps / kGroups; ++i) {
        const int from = lane / kLanes + i * kGroups;
        const float4 y = values[from][lane % kLanes];
        own[i] = {sums[from], {y.x, y.y, y.z, y.w}};
      }
#pragma unroll
      for (int i = kWarps / kGroups; i < kAtOnce; ++i) own[i] = {};
      sum = add_lanes<kLanes>(own);
    }
    if (waited && !wrong) break;
  }
  const QueryRow query = entry.query<Shape>(a, row);
  if (thread >= kLanes || entry.pieces() == 0 || query.token < 0) return;
  write_out(a.out, query, sum.all, column, sum.x);
}

// An item whose parts several CTAs have, where its bits are its own.
struct OwnEntry {
  int first_token, first_head, first_row, rows;  // as a segment's
  int pieces;                                    // 0: nothing to add
  int first;                                     // CTA
  int item_at, part_units, begun;                // parts in the first piece
  Cuts cuts;

  __device__ __forceinline__ int slot(const Pieces& from, int piece) const {
    if (piece == 0) return first * from.slots + ((begun - 1) & 1);
    const int part = begun + piece - 1;
    const int cta = cuts.cta_of(item_at + part * part_units);
    return cta * from.slots + 2 + from.later(part - parts_before(cta));
  }
  // That begin before a CTA's share does.
  __device__ __forceinline__ int parts_before(int cta) const {
    return (cuts.begin_of(cta) - item_at + part_units - 1) / part_units;
  }
};

// The item number `index`, or where items may be too many, the one that CTA `index` begins and
// leaves to the next. In shared memory.
template <class Shape>
__device__ __forceinline__ void find_own_entry(const Arguments& a, int index, OwnEntry& entry,
                                               int2* sums) {
  const int2 rows = rows_of_thread<kCombineThreads>(a.q.rows);
  const int passes = passes_of<Shape>(a);
  Items items;
  int2 own = make_int2(0, 0);
#pragma unroll 1
  for (int row = rows.x; row < rows.y; ++row) {
    items = items_of<Shape>(a, row);
    own.x += count_of<Shape>(a, items) * items.units;
    own.y += count_of<Shape>(a, items);
  }
  if (threadIdx.x == 0) entry.pieces = 0;
  const Scanned scanned = scan<kCombineThreads>(own, sums);
  const Cuts cuts(scanned.all.x * passes, a.pieces);
  const int end = index < cuts.ctas ? cuts.begin_of(index + 1) : 0;
  const int pass =
      a.pieces.by_item ? index / max(scanned.all.y, 1) : max(end - 1, 0) / max(scanned.all.x, 1);
  int at = pass * scanned.all.x + scanned.before.x;
  int item = pass * scanned.all.y + scanned.before.y;
#pragma unroll 1
  for (int row = rows.x; row < rows.y; ++row) {
    if (rows.y - rows.x > 1) items = items_of<Shape>(a, row);
    const int count = count_of<Shape>(a, items);
    int i = index - item;
    if (!a.pieces.by_item) i = count > 0 && end > at ? (end - 1 - at) / items.units : -1;
    if (pass < passes && i >= 0 && i < count) {
      const ItemPlace<Shape> place(items, pass, i);
      const int item_at = at + i * items.units;
      const int first = cuts.cta_of(item_at);
      const int last = cuts.cta_of(item_at + (items.parts - 1) * items.part_units);
      entry.first_token = items.first_token;
      entry.first_head = place.block * Shape::kHeads;
      entry.first_row = place.chunk * Shape::kChunk;
      entry.rows = min(items.queries * a.q.group - entry.first_row, Shape::kChunk);
      entry.first = first;
      entry.item_at = item_at;
      entry.part_units = items.part_units;
      entry.cuts = cuts;
      if (first != last && (a.pieces.by_item || first == index)) {
        entry.begun = entry.parts_before(first + 1);
        entry.pieces = 1 + items.parts - entry.begun;
      }
      break;
    }
    at += count * items.units;
    item += count;
  }
  __syncthreads();
}

// Parts are added one after the other, as a CTA does that has them all. Grid: (entries, at most
// rows / kRowsAtOnce).
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_own(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kRowsAtOnce = kCombineThreads / kLanes, kAtOnce = 8;
  __shared__ OwnEntry entry;
  __shared__ int2 scanned[kCombineThreads / 32];
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  find_own_entry<Shape>(a, static_cast<int>(blockIdx.x), entry, scanned);
  if (entry.pieces == 0) return;
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
#pragma unroll 1
  for (int row =
           static_cast<int>(blockIdx.y) * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
       row < Shape::kRows; row += static_cast<int>(gridDim.y) * kRowsAtOnce) {
    const QueryRow query =
        query_row<Shape>(a, entry.first_token, entry.first_head, entry.first_row, entry.rows, row);
    if (query.token < 0) continue;
    Added added;
#pragma unroll 1
    for (int first = 0; first < entry.pieces; first += kAtOnce) {
      Added more[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int piece = min(first + i, entry.pieces - 1);
        more[i] = piece_at<Shape>(a.pieces, entry.slot(a.pieces, piece), row, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < entry.pieces) added.add(more[i].all, more[i].x);
      }
    }
    write_out(a.out, query, added.all, column, added.x);
  }
}

}  // namespace hyla::attention::decode
