// Sequences so much longer than the others that they alone would decide how long the fused kernel
// takes: one CTA a head would walk over them while all others have ended. They are prepared chunk
// by chunk by all multiprocessors and walked over with their value rows cut (kernel_prepare.cuh,
// kernel_serial.cuh), and the fused kernel has the other sequences on the multiprocessors that are
// left. Which sequences these are is found on the device, by the CTAs that prepare: the host knows
// neither the lengths nor whether there are any.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"
#include "ops/gdn_prefill/record.cuh"

namespace hyla::gdn {

struct LongRows {
  int count;                // 0: none
  int most;                 // chunks of a row that is not one of them
  int parts, ctas;          // of their walks: parts of each, CTAs of all
  int row[kMostLongRows];   // rising
  int slot[kMostLongRows];  // of a row's first chunk: only these have records
  int chunks;               // of all of them
  // On the way: of all rows, and the first ranks by length.
  int total, longest, candidates;
  int top[kMostLongRows + 1], ranked[kMostLongRows + 1];  // chunks, rows
  std::int64_t costs[2][kMostLongRows + 1];               // of each number of parts
};

// The rows of a call that have records, numbered: all, or the long ones among others.
struct RecordRows {
  const FusedArguments& a;
  const LongRows* longs;  // null: all

  __device__ __forceinline__ int count() const {
    return longs != nullptr ? longs->count : static_cast<int>(a.p.sequences.rows);
  }
  __device__ __forceinline__ int row(int i) const { return longs != nullptr ? longs->row[i] : i; }
  // Of all their chunks, some of which may not be there; and of the first of row i.
  __device__ __forceinline__ std::int64_t slots() const {
    return longs != nullptr ? longs->chunks : chunk_slots(count(), a.p.sequences.tokens);
  }
  __device__ __forceinline__ int first_slot(int i, int begin) const {
    if (longs != nullptr) return longs->slot[i];
    return a.row_slots != nullptr ? a.row_slots[i] : first_chunk_slot(i, begin);
  }
};

// Read again: the compiler would keep it in a register from here on, and where it is needed next
// there are none to spare.
__device__ __forceinline__ int own_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Tokens of a row; none of padding.
__device__ __forceinline__ int find_length(const PrefillProblem& p, int row) {
  int begin, length;
  find_tokens(p, row, begin, length);
  return p.slots.read_slot(row) == core::kNullSlot ? 0 : length;
}

inline constexpr int kSearchedRows = 512;

// The longest rows and their chunks in order, as many as may be taken out and one more; by all
// threads of a CTA, with a barrier after it. `lengths` is scratch for 2 kSearchedRows numbers. Of
// more rows only those that are longer than all work shared evenly are looked at.
__device__ __forceinline__ void rank_long_rows(const FusedArguments& a, LongRows& s, int* lengths) {
  const int rows = static_cast<int>(a.p.sequences.rows);
  const int thread = own_thread(), threads = static_cast<int>(blockDim.x);
  const bool all = rows <= kSearchedRows;
  const auto chunks_of = [&](int row) {
    return row < rows ? (find_length(a.p, row) + kChunk - 1) / kChunk : 0;
  };
  if (thread == 0) s.total = s.longest = s.candidates = 0;
  if (thread <= kMostLongRows) s.top[thread] = 0;
  int sum = 0, longest = 0;
  for (int row = thread; row < rows; row += threads) {
    const int chunks = chunks_of(row);
    if (all) lengths[row] = chunks;
    sum += chunks;
    longest = max(longest, chunks);
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  longest = __reduce_max_sync(0xffffffffu, longest);
  __syncthreads();
  if ((thread & 31) == 0) {
    atomicAdd(&s.total, sum);
    atomicMax(&s.longest, longest);
  }
  __syncthreads();
  int* const names = lengths + kSearchedRows;
  LongPlan plan = a.long_plan;
  plan.rows = rows, plan.chunks = s.total;
  const int least =
      static_cast<int>(min(plan.balanced() / LongPlan::kChunk, std::int64_t{1} << 30));
  for (int row = thread; !all && row < rows; row += threads) {
    const int chunks = chunks_of(row);
    if (chunks <= least) continue;
    const int place = atomicAdd(&s.candidates, 1);
    if (place < kSearchedRows) lengths[place] = chunks, names[place] = row;
  }
  if (!all) __syncthreads();
  const int count = all ? rows : s.candidates;
  if (!all && (count == 0 || count > kMostLongRows)) return;
  // Of those that are alike the order does not matter: all of them are taken out, or none.
  for (int own = thread; own < count; own += threads) {
    const int chunks = lengths[own];
    int rank = 0;
    for (int other = 0; other < count && rank <= kMostLongRows; ++other) {
      rank += lengths[other] > chunks || (lengths[other] == chunks && other < own);
    }
    if (rank <= kMostLongRows) s.top[rank] = chunks, s.ranked[rank] = all ? own : names[own];
  }
  if (!all && thread == 0) s.top[count] = least;
}

// By all threads of a CTA, with a barrier after it. Only where a.long_rows > 0. `scratch`: see
// above.
__device__ __forceinline__ void find_long_rows(const FusedArguments& a, LongRows& s, int* scratch) {
  const int rows = static_cast<int>(a.p.sequences.rows), thread = own_thread();
  rank_long_rows(a, s, scratch);
  __syncthreads();
  LongPlan plan = a.long_plan;
  plan.rows = rows, plan.chunks = s.total;
  const int limit = min(a.long_rows, rows);
  const int tried = thread & 31;
  if (thread < 64 && tried <= limit) {
    int prepared = 0;
    for (int rank = 0; rank < tried; ++rank) prepared += s.top[rank];
    const bool ends = tried == 0 || s.top[tried - 1] > s.top[tried];
    // Rows that overlap, as no valid offsets do, may have more chunks than there is memory for.
    const bool fits = prepared <= chunk_slots(a.long_rows, a.p.sequences.tokens);
    const int parts = 1 + (thread >> 5);
    s.costs[thread >> 5][tried] = ends && fits && parts <= plan.most_parts
                                      ? plan.cost(tried, prepared, s.top[0], s.top[tried], parts)
                                      : LongPlan::kImpossible;
  }
  __syncthreads();
  int count = 0, parts = 1;
  std::int64_t least = s.costs[0][0];
  for (int p = 0; p < plan.most_parts; ++p) {
    for (int i = 1; i <= limit; ++i) {
      if (s.costs[p][i] < least) least = s.costs[p][i], count = i, parts = p + 1;
    }
  }
  if (!LongPlan::pays(least, s.costs[0][0])) count = 0;
  if (thread == 0) {
    int chunks = 0;
    for (int rank = 0; rank < count; ++rank) chunks += s.top[rank];
    s.count = count, s.chunks = chunks, s.parts = parts;
    s.most = count > 0 ? s.top[count] : s.longest;
    s.ctas = count * plan.ctas_a_row(parts);
  }
  if (thread >= count) return;
  const int row = s.ranked[thread];
  int place = 0, slot = 0;
  for (int other = 0; other < count; ++other) {
    if (s.ranked[other] >= row) continue;
    ++place;
    slot += s.top[other];
  }
  s.row[place] = row;
  s.slot[place] = slot;
}

}  // namespace hyla::gdn
