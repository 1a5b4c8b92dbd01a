// Which (sequence, head) tasks a CTA works on, and in which order.
//
// Sequences are ranked by length, the longest first; task t is head t % heads of the sequence of
// rank t / heads. The CTAs take them in turns, every second round from the other end, so that the
// CTA with the longest task of one round has the shortest of the next. The heads of a sequence are
// neighbours, so keys and queries that they share come from L2. Every CTA finds its own tasks from
// the offsets on the device: nothing is asked of the host and no memory is needed.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

inline constexpr int kRankedRows = 512;  // more sequences than this are taken as they come

struct Task {
  int row, head;
  int begin, length;  // tokens
  int next;           // round of the CTA's next task

  __device__ __forceinline__ int chunks() const { return (length + kChunk - 1) / kChunk; }
};

// By all threads of the CTA, with a barrier after it. `lengths` is scratch for kRankedRows numbers.
__device__ __forceinline__ void rank_rows(const PrefillProblem& p, std::uint16_t* order,
                                          int* lengths) {
  const int rows = static_cast<int>(p.sequences.rows);
  if (rows > kRankedRows || rows == 1) return;
  const int own = static_cast<int>(threadIdx.x);
  if (own < rows) {
    int begin;
    find_tokens(p, own, begin, lengths[own]);
  }
  __syncthreads();
  if (own < rows) {
    const int length = lengths[own];
    int rank = 0;
    for (int other = 0; other < rows; ++other) {
      rank += lengths[other] > length || (lengths[other] == length && other < own);
    }
    order[rank] = static_cast<std::uint16_t>(own);
  }
}

// The CTA's task of this round or, where that is padding, of a later one. False: there is none.
__device__ __forceinline__ bool find_task(const FusedArguments& a, const std::uint16_t* order,
                                          int round, Task& task) {
  const PrefillProblem& p = a.p;
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int rows = static_cast<int>(p.sequences.rows), heads = static_cast<int>(p.heads);
  for (;; ++round) {
    const std::int64_t index =
        static_cast<std::int64_t>(round) * ctas + (round & 1 ? ctas - 1 - cta : cta);
    if (static_cast<std::int64_t>(round) * ctas >= a.tasks) return false;
    if (index >= a.tasks) continue;
    const int rank = static_cast<int>(index) / heads;
    const int row = rows > kRankedRows || rows == 1 ? rank : order[rank];
    if (p.slots.read_slot(row) == core::kNullSlot) continue;
    task.row = row;
    task.head = static_cast<int>(index) - rank * heads;
    find_tokens(p, row, task.begin, task.length);
    task.next = round + 1;
    return true;
  }
}

// Walks over the chunks of all tasks of a CTA.
struct ChunkCursor {
  ChunkInfo info;  // of the chunk
  Task task;
  int chunk;

  __device__ __forceinline__ void start() {
    task.length = task.next = chunk = 0;
    info.rows = kChunk;
  }

  __device__ __forceinline__ void advance(const FusedArguments& a, const std::uint16_t* order,
                                          int chunks) {
    if (info.rows == 0) return;  // there were no more already
    chunk += chunks;
#pragma unroll 1
    while (chunk * kChunk >= task.length) {
      chunk -= task.chunks();
      if (!find_task(a, order, task.next, task)) {
        info.rows = 0;
        return;
      }
      set_head(a.p, task.head, info);
    }
    set_tokens(a.p, task.begin + chunk * kChunk, min(kChunk, task.length - chunk * kChunk), info);
  }
};

}  // namespace hyla::gdn
