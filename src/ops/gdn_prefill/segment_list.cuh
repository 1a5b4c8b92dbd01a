// The segments of all heads that another one follows: the walks to their ends make the states
// between segments.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/segment_rows.cuh"

namespace hyla::gdn {

// A segment of a head of a sequence that another one follows: its number, and its chunks.
struct Segment {
  int task, row, head, number;
  int begin;     // token of the sequence
  int chunks;    // of the sequence
  int from, to;  // of them; alike where no walk is needed

  __device__ __forceinline__ Segment(const FusedArguments& a, int index) {
    task = index / (a.parts - 1);
    number = index - task * (a.parts - 1);
    row = a.by_heads(task);
    head = task - row * static_cast<int>(a.p.heads);
    int length;
    find_tokens(a.p, row, begin, length);
    chunks = (length + kChunk - 1) / kChunk;
    from = first_chunk(a, chunks, number);
    to = first_chunk(a, chunks, number + 1);
    if (to == chunks || a.p.slots.read_slot(row) == core::kNullSlot) to = from;
  }
};

}  // namespace hyla::gdn
