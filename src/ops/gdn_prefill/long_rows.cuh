// Sequences so much longer than the others that they alone would decide how long the fused kernel
// takes: one CTA a head would walk over them while all others have ended. They are prepared chunk by
// chunk by all multiprocessors and walked over with their value rows cut (kernel_prepare.cuh,
// kernel_serial.cuh), and the fused kernel has the other sequences on the multiprocessors that are
// left. Which sequences these are is found on the device, by the CTAs that prepare: the host knows
// neither the lengths nor whether there are any.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"
#include "ops/gdn_prefill/record.cuh"

namespace hyla::gdn {

struct LongRows {
  int count;                                 // 0: none
  int most;                                  // chunks of a row that is not one of them
  int row[kMostLongRows];                    // rising
  int slot[kMostLongRows];                   // of a row's first chunk: only these have records
  int chunks;                                // of all of them
  int total, longest, found[kMostLongRows];  // on the way

  __device__ __forceinline__ bool has(int length) const { return length > most * kChunk; }
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
    return longs != nullptr ? longs->slot[i] : first_chunk_slot(i, begin);
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

// By all threads of a CTA, with a barrier after it. Only where a.long_rows > 0.
__device__ __forceinline__ void find_long_rows(const FusedArguments& a, LongRows& s) {
  const int rows = static_cast<int>(a.p.sequences.rows);
  const int thread = own_thread(), threads = static_cast<int>(blockDim.x);
  const auto chunks_of = [](int length) { return (length + kChunk - 1) / kChunk; };
  if (thread == 0) s.count = s.total = s.longest = s.chunks = 0;
  const int own = thread < rows ? chunks_of(find_length(a.p, thread)) : 0;
  int sum = own, longest = own;
  for (int row = thread + threads; row < rows; row += threads) {
    const int chunks = chunks_of(find_length(a.p, row));
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
  LongPlan plan = a.long_plan;
  plan.rows = rows, plan.chunks = s.total, plan.longest = s.longest;
  const int most = plan.most();
  if (thread == 0) s.most = most;
  if (plan.longest <= most) return;
  for (int row = thread; row < rows; row += threads) {
    const int chunks = row == thread ? own : chunks_of(find_length(a.p, row));
    if (chunks <= most) continue;
    const int place = atomicAdd(&s.count, 1);
    if (place < kMostLongRows) s.found[place] = row;
    atomicAdd(&s.chunks, chunks);
  }
  __syncthreads();
  const int count = s.count;
  // Rows that overlap, as no valid offsets do, may have more chunks than there is memory for.
  const bool pays = count <= a.long_rows && plan.pays(count, s.chunks) &&
                    s.chunks <= chunk_slots(a.long_rows, a.p.sequences.tokens);
  __syncthreads();
  if (!pays) {
    if (thread == 0) s.count = 0, s.most = plan.longest;
    return;
  }
  if (thread >= count) return;
  const int row = s.found[thread];
  int rank = 0, slot = 0;
  for (int other = 0; other < count; ++other) {
    if (s.found[other] >= row) continue;
    ++rank;
    slot += chunks_of(find_length(a.p, s.found[other]));
  }
  s.row[rank] = row;
  s.slot[rank] = slot;
}

}  // namespace hyla::gdn
