// Which (sequence, head) tasks a CTA works on, and in which order.
//
// Sequences are ranked by length, the longest first; task t is head t % heads of the sequence of
// rank t / heads. The CTAs take them in turns, every second round from the other end, so that the
// CTA with the longest task of one round has the shortest of the next. The heads of a sequence are
// neighbours, so keys and queries that they share come from L2. Every CTA finds its own tasks from
// the offsets on the device: nothing is asked of the host and no memory is needed.
#pragma once

#include "ops/gdn_prefill/checkpoints.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"
#include "ops/gdn_prefill/long_rows.cuh"

namespace hyla::gdn {

inline constexpr int kRankedRows = 512;  // more sequences than this are taken as they come
inline constexpr int kKeptRows = 96;     // up to so many, tokens and slots are looked up once

// What a CTA keeps of the sequences, by rank.
struct RankedRows {
  std::uint16_t row[kRankedRows];
  int begin[kKeptRows], length[kKeptRows];  // tokens; length < 0: padding
  int from[kKeptRows], to[kKeptRows];       // slots of states, see find_slots
  int first, ctas;                          // the first task, and who shares them
  int most;                                 // tokens of a sequence: longer ones are others' work
};

struct Task {
  int row, head;
  int begin, length;  // tokens
  int rank;           // of the row
  int next;           // round of the CTA's next task

  __device__ __forceinline__ int chunks() const { return (length + kChunk - 1) / kChunk; }
};

// Where a row's initial state is and its final one goes; -1: it starts from zero, is not kept.
struct StateSlots {
  int from, to;
};
__device__ __forceinline__ StateSlots find_slots(const PrefillProblem& p, int row) {
  static_assert(core::kNullSlot == -1);
  const bool starts = p.starts_from_pool(row);
  return {starts ? static_cast<int>(p.slots.read_slot(row)) : -1,
          p.final.present() ? static_cast<int>(p.slots.write_slot(row)) : -1};
}

// By one thread, before a barrier. Sequences that others walk over (long_rows.cuh) have the first
// ranks, and multiprocessors of their own.
__device__ __forceinline__ void leave_long_rows(const FusedArguments& a, RankedRows& ranked) {
  const int count = __ldcg(&a.longs->count);
  const int left = a.long_plan.multiprocessors - __ldcg(&a.longs->ctas);
  ranked.ctas = count > 0 ? min(static_cast<int>(gridDim.x), left) : static_cast<int>(gridDim.x);
  ranked.first = a.p.sequences.rows > kRankedRows ? 0 : count * static_cast<int>(a.p.heads);
  ranked.most = count > 0 ? __ldcg(&a.longs->most) * kChunk : 0x7fffffff;
}

// The row that a thread has for rank_rows: asked for early, looked at late.
struct OwnRow {
  int begin = 0, length = 0;
  bool padding = false;
  StateSlots slots = {};

  __device__ __forceinline__ explicit OwnRow(const PrefillProblem& p) {
    const int own = own_thread(), rows = static_cast<int>(p.sequences.rows);
    if (rows > kRankedRows || own >= rows) return;
    find_tokens(p, own, begin, length);
    padding = p.slots.read_slot(own) == core::kNullSlot;
    if (rows <= kKeptRows) slots = find_slots(p, own);
  }
};

// By all threads of the CTA, with a barrier after it. `lengths` is scratch for kRankedRows numbers.
__device__ __forceinline__ void rank_rows(const PrefillProblem& p, const OwnRow& row,
                                          RankedRows& ranked, int* lengths) {
  const int rows = static_cast<int>(p.sequences.rows);
  if (rows > kRankedRows) return;
  const int own = own_thread(), length = row.padding ? 0 : row.length;
  if (own < rows) lengths[own] = length;
  if (rows > 1) __syncthreads();
  if (own < rows) {
    int rank = 0;
#pragma unroll 1
    for (int other = 0; other < rows; ++other) {
      rank += lengths[other] > length || (lengths[other] == length && other < own);
    }
    ranked.row[rank] = static_cast<std::uint16_t>(own);
    if (rows <= kKeptRows) {
      ranked.begin[rank] = row.begin;
      ranked.length[rank] = row.padding ? -1 : length;
      ranked.from[rank] = row.slots.from;
      ranked.to[rank] = row.slots.to;
    }
  }
}

// The CTA's task of this round or, where that is padding, of a later one. False: there is none.
// Longs: some sequences may be others' work. Without, what would be read of `ranked` is constant:
// the reads alone cost the loop over chunks its addresses in uniform registers (README.md).
template <bool Longs>
__device__ __forceinline__ bool find_task(const FusedArguments& a, const RankedRows& ranked,
                                          int round, Task& task) {
  const PrefillProblem& p = a.p;
  const int ctas = Longs ? ranked.ctas : static_cast<int>(gridDim.x);
  const int cta = static_cast<int>(blockIdx.x);
  const int rows = static_cast<int>(p.sequences.rows), heads = static_cast<int>(p.heads);
  if (Longs && cta >= ctas) return false;
#pragma unroll 1
  for (;; ++round) {
    const int before = Longs ? ranked.first : 0;
    const int first = before + round * ctas;  // below 2^31: there are at most 2^30 tasks
    if (first >= a.tasks) return false;
    const int index = first + (round & 1 ? ctas - 1 - cta : cta);
    if (index >= a.tasks) continue;
    const int rank = a.by_heads(index);
    task.head = index - rank * heads;
    task.rank = rank;
    task.next = round + 1;
    task.row = rows > kRankedRows ? rank : ranked.row[rank];
    if (rows <= kKeptRows) {
      task.begin = ranked.begin[rank];
      task.length = ranked.length[rank];
      if (task.length >= 0) return true;
    } else if (p.slots.read_slot(task.row) != core::kNullSlot) {
      find_tokens(p, task.row, task.begin, task.length);
      if (!Longs || task.length <= ranked.most) return true;
    }
  }
}

struct StateTask : Task, StateSlots {};

// The same with the slots; a row below 0: there is none.
template <bool Longs>
__device__ __forceinline__ void find_task(const FusedArguments& a, const RankedRows& ranked,
                                          int round, StateTask& task) {
  if (!find_task<Longs>(a, ranked, round, static_cast<Task&>(task))) {
    task.row = -1;
  } else if (a.p.sequences.rows <= kKeptRows) {
    task.from = ranked.from[task.rank];
    task.to = ranked.to[task.rank];
  } else {
    static_cast<StateSlots&>(task) = find_slots(a.p, task.row);
  }
}

// Walks over the chunks of all tasks of a CTA, starting in front of the first.
struct ChunkCursor {
  ChunkInfo info;  // of the chunk
  Task task;
  int chunk;
  // With a list of checkpoints:
  int part;        // tokens, when it is the first part of a chunk; else 0
  int kept, stop;  // the next checkpoint, and after how many tokens

  __device__ __forceinline__ void start() {
    task.length = task.next = part = 0;
    chunk = -1;
    info.rows = kChunk;
  }

  template <bool Longs>
  __device__ __forceinline__ void advance(const FusedArguments& a, const RankedRows& ranked,
                                          int steps) {
    if (info.rows == 0) return;  // there were no more already
    if constexpr (!Longs) {      // lists are not for the kernels that take long sequences
      if (a.p.checkpoint_offsets.present()) return advance_listed(a, ranked, steps);
    }
    chunk += steps;
#pragma unroll 1
    while (chunk * kChunk >= task.length) {
      chunk -= task.chunks();
      if (!enter_next<Longs>(a, ranked)) return;
    }
    set_tokens(a.p, task.begin + chunk * kChunk, min(kChunk, task.length - chunk * kChunk), info);
  }

 private:
  template <bool Longs>
  __device__ __forceinline__ bool enter_next(const FusedArguments& a, const RankedRows& ranked) {
    if (!find_task<Longs>(a, ranked, task.next, task)) {
      info.rows = 0;
      return false;
    }
    set_head(a, task.head, info);
    return true;
  }

  __device__ __forceinline__ void find_stop(const FusedArguments& a, int index) {
    kept = index;
    stop = checkpoint_tokens(a.p, task.row, index, task.length);
  }

  // The same steps as FusedState takes.
  __device__ __forceinline__ void advance_listed(const FusedArguments& a, const RankedRows& ranked,
                                                 int steps) {
#pragma unroll 1
    for (; steps > 0; --steps) {
      if (part == 0) ++chunk;
      part = 0;
#pragma unroll 1
      while (chunk * kChunk >= task.length) {
        if (!enter_next<false>(a, ranked)) return;
        chunk = 0;
        find_stop(a, 0);
      }
#pragma unroll 1
      while (stop <= chunk * kChunk) find_stop(a, kept + 1);
      if (stop < min(chunk * kChunk + kChunk, task.length)) {
        part = stop - chunk * kChunk;
        find_stop(a, kept + 1);
      }
    }
    const int rows = part > 0 ? part : min(kChunk, task.length - chunk * kChunk);
    set_tokens(a.p, task.begin + chunk * kChunk, rows, info);
  }
};

}  // namespace hyla::gdn
