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
  int4 what, where;

  __device__ __forceinline__ Entry(const Pieces& pieces, int index)
      : what(__ldcg(pieces.entries + index * 2)), where(__ldcg(pieces.entries + index * 2 + 1)) {
    if (pieces.by_item && index >= __ldcg(pieces.items)) where.x = 0;
  }
  __device__ __forceinline__ int pieces() const { return where.x; }
  __device__ __forceinline__ int slot(int piece) const { return slot_of_piece(where.y, piece); }
  template <class Shape>
  __device__ __forceinline__ QueryRow query(const Arguments& a, int row) const {
    return query_row<Shape>(a, what.x, what.y, what.z, what.w, row);
  }
};

// Few pieces an item: a thread has four columns of one row. Grid: (CTAs, rows / kRowsAtOnce).
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_rows(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kRowsAtOnce = kCombineThreads / kLanes, kAtOnce = 4;
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int index = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
  const int row =
      static_cast<int>(blockIdx.y) * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  if (row >= Shape::kRows) return;
  // Most often there are two pieces. Where they would be is known before the entry is there.
  const Added first = piece_at<Shape>(a.pieces, slot_of_piece(index, 0), row, column);
  const Added second =
      piece_at<Shape>(a.pieces, slot_of_piece(min(index, a.pieces.ctas - 2), 1), row, column);
  const Entry entry(a.pieces, index);
  const QueryRow query = entry.query<Shape>(a, row);
  const int pieces = entry.pieces();
  if (pieces == 0 || query.token < 0) return;
  Added sum;
  sum.add(first.all, first.x);
  sum.add(second.all, second.x);
#pragma unroll 1
  for (int done = 2; done < pieces; done += kAtOnce) {
    Added more[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = min(done + i, pieces - 1);
      more[i] = piece_at<Shape>(a.pieces, entry.slot(piece), row, column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i < pieces) sum.add(more[i].all, more[i].x);
    }
  }
  write_out(a.out, query, sum.all, column, sum.x);
}

// Many pieces an item: slices of a CTA take pieces of one row in turns. Grid: (entries, rows, D /
// Columns).
template <class Shape, int Columns>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_pieces(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Columns / 4, kSlices = kCombineThreads / kLanes, kAtOnce = 5;
  __shared__ float4 values[kSlices][kLanes];
  __shared__ Softmax sums[kSlices];
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y);
  const Entry entry(a.pieces, static_cast<int>(blockIdx.x));
  const QueryRow query = entry.query<Shape>(a, row);
  const int pieces = entry.pieces();
  if (pieces == 0 || query.token < 0) return;
  const int slice = thread / kLanes, own_column = thread % kLanes * 4;
  const int column = static_cast<int>(blockIdx.z) * Columns + own_column;
  Added own;
#pragma unroll 1
  for (int first = slice; first < pieces; first += kAtOnce * kSlices) {
    Added more[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = first + i * kSlices;
      if (piece < pieces) more[i] = piece_at<Shape>(a.pieces, entry.slot(piece), row, column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kSlices < pieces) own.add(more[i].all, more[i].x);
    }
  }
  values[slice][thread % kLanes] = make_float4(own.x[0], own.x[1], own.x[2], own.x[3]);
  if (own_column == 0) sums[slice] = own.all;
  __syncthreads();
  if (slice != 0) return;
  Added sum;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) sum.all.top = fmaxf(sum.all.top, sums[i].top);
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const float factor = weight(sums[i].top, sum.all.top);
    const float4 y = values[i][thread];
    sum.all.sum += factor * sums[i].sum;
    sum.x[0] += factor * y.x, sum.x[1] += factor * y.y;
    sum.x[2] += factor * y.z, sum.x[3] += factor * y.w;
  }
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
  const int blocks = a.cache.kv_heads / Shape::kHeads;
  Items items;
  int2 own = make_int2(0, 0);
#pragma unroll 1
  for (int row = rows.x; row < rows.y; ++row) {
    items = items_of<Shape>(a, row);
    own.x += items.chunks * blocks * items.units;
    own.y += items.chunks * blocks;
  }
  if (threadIdx.x == 0) entry.pieces = 0;
  const Scanned scanned = scan<kCombineThreads>(own, sums);
  const Cuts cuts(scanned.all.x, a.pieces.ctas);
  int at = scanned.before.x, item = scanned.before.y;
  const int end = index < cuts.ctas ? cuts.begin_of(index + 1) : 0;
#pragma unroll 1
  for (int row = rows.x; row < rows.y; ++row) {
    if (rows.y - rows.x > 1) items = items_of<Shape>(a, row);
    const int count = items.chunks * blocks;
    int i = index - item;
    if (!a.pieces.by_item) i = count > 0 && end > at ? (end - 1 - at) / items.units : -1;
    if (i >= 0 && i < count) {
      const int block = i / items.chunks, item_at = at + i * items.units;
      const int first = cuts.cta_of(item_at);
      const int last = cuts.cta_of(item_at + (items.parts - 1) * items.part_units);
      entry.first_token = items.first_token;
      entry.first_head = block * Shape::kHeads;
      entry.first_row = (i - block * items.chunks) * Shape::kChunk;
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
