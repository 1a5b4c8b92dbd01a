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
  template <class Shape>
  __device__ __forceinline__ std::int64_t place(int piece, int row) const {
    const std::int64_t slot = piece == 0 ? where.y * 2 : (where.y + piece) * 2 + 1;
    return slot * Shape::kRows + row;
  }
  template <class Shape>
  __device__ __forceinline__ QueryRow query(const Arguments& a, int row) const {
    return query_row<Shape>(a, what.x, what.y, what.z, what.w, row);
  }
};

// Few pieces an item: a thread has four columns of one row. Grid: (entries, rows / kRowsAtOnce).
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_rows(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kRowsAtOnce = kCombineThreads / kLanes, kAtOnce = 4;
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const Entry entry(a.pieces, static_cast<int>(blockIdx.x));
  const int column = static_cast<int>(threadIdx.x) % kLanes * 4;
  const int row =
      static_cast<int>(blockIdx.y) * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  if (row >= Shape::kRows) return;
  const QueryRow query = entry.query<Shape>(a, row);
  const int pieces = entry.pieces();
  if (pieces == 0 || query.token < 0) return;
  Softmax all;
  float x[4] = {};
#pragma unroll 1
  for (int first = 0; first < pieces; first += kAtOnce) {
    float2 sums[kAtOnce];
    float4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t at = entry.place<Shape>(min(first + i, pieces - 1), row);
      sums[i] = __ldcg(a.pieces.sums + at);
      values[i] = __ldcg(reinterpret_cast<const float4*>(a.pieces.values + at * Shape::D + column));
    }
    float top = all.top;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < pieces) top = fmaxf(top, sums[i].x);
    }
    const float old = weight(all.top, top);
    all = {top, all.sum * old};
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] *= old;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= pieces) break;
      const float factor = weight(sums[i].x, top);
      all.sum += factor * sums[i].y;
      x[0] += factor * values[i].x, x[1] += factor * values[i].y;
      x[2] += factor * values[i].z, x[3] += factor * values[i].w;
    }
  }
  write_out(a.out, query, all, column, x);
}

// Many pieces an item: slices of a CTA take pieces of one row in turns. Grid: (entries, rows, D /
// Columns).
template <class Shape, int Columns>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_pieces(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Columns / 4, kSlices = kCombineThreads / kLanes;
  __shared__ float4 values[kSlices][kLanes];
  __shared__ float sums[kSlices];
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y);
  const Entry entry(a.pieces, static_cast<int>(blockIdx.x));
  const QueryRow query = entry.query<Shape>(a, row);
  const int pieces = entry.pieces();
  if (pieces == 0 || query.token < 0) return;
  const int slice = thread / kLanes, own_column = thread % kLanes * 4;
  const int column = static_cast<int>(blockIdx.z) * Columns + own_column;
  Softmax all;
  for (int piece = thread & 31; piece < pieces; piece += 32) {
    all.top = fmaxf(all.top, __ldcg(a.pieces.sums + entry.place<Shape>(piece, row)).x);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    all.top = fmaxf(all.top, __shfl_xor_sync(device::kFullWarp, all.top, step));
  }
  float x[4] = {};
#pragma unroll 4
  for (int piece = slice; piece < pieces; piece += kSlices) {
    const std::int64_t at = entry.place<Shape>(piece, row);
    const float2 own = __ldcg(a.pieces.sums + at);
    const float4 y =
        __ldcg(reinterpret_cast<const float4*>(a.pieces.values + at * Shape::D + column));
    const float factor = weight(own.x, all.top);
    all.sum += factor * own.y;
    x[0] += factor * y.x, x[1] += factor * y.y, x[2] += factor * y.z, x[3] += factor * y.w;
  }
  values[slice][thread % kLanes] = make_float4(x[0], x[1], x[2], x[3]);
  if (own_column == 0) sums[slice] = all.sum;
  __syncthreads();
  if (slice != 0) return;
#pragma unroll
  for (int other = 1; other < kSlices; ++other) {
    const float4 y = values[other][thread];
    x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    all.sum += sums[other];
  }
  write_out(a.out, query, all, column, x);
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
    return cta * from.slots + 2 + part - parts_before(cta);
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

// Parts are added one after the other, as a CTA does that has them all. Grid: (entries, at most rows /
// kRowsAtOnce).
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
