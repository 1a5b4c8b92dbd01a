// Segments as sequences of their own, for a kernel that knows of sequences only: row r of a call
// becomes rows r parts ... r parts + parts - 1, whose initial states are those between the segments
// (segments.cuh). The first one's is a copy of the sequence's, in the place of M of segment 0,
// which nobody needs. Final states are written by the segment with the last token.
#pragma once

#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

// Segments that another one follows, of all heads of all sequences.
inline constexpr int kMostSegments = 384;
// Parts of all sequences: at least two each.
inline constexpr int kMostSegmentRows = 2 * kMostSegments;

struct SegmentRows {
  std::int32_t offsets[kMostSegmentRows + 1];
  std::int32_t read[kMostSegmentRows], write[kMostSegmentRows];  // slots; -1: none
  std::int32_t has_initial[kMostSegmentRows];
  std::int32_t start[kMostSegments];  // of heads' segments, see kernel_starts.cuh
};

__device__ __forceinline__ float* first_state(const FusedArguments& a, int task) {
  return segment_matrix(a, task, 0);
}

// Of one row, a thread a segment.
__device__ __forceinline__ void write_segment_rows(const FusedArguments& a, int row) {
  const int part = static_cast<int>(threadIdx.x);
  const PrefillProblem& p = a.p;
  int begin, length;
  find_tokens(p, row, begin, length);
  const int chunks = (length + kChunk - 1) / kChunk;
  if (part < a.parts) {
    const int from = first_chunk(a, chunks, part), to = first_chunk(a, chunks, part + 1);
    const int i = row * a.parts + part;
    const bool there = p.slots.read_slot(row) != core::kNullSlot && (part == 0 || from < to);
    // Two slots a state between segments: N and M.
    const int first = row * static_cast<int>(p.heads) * pieces_followed(a) * 2;
    a.rows->offsets[i] = begin + min(length, from * kChunk);
    a.rows->read[i] = !there ? -1 : part == 0 ? first + 1 : first + 2 * (part * a.cuts - 1);
    const bool last = to == chunks && (from < to || part == 0);
    a.rows->write[i] = there && last && p.final.present()
                           ? static_cast<std::int32_t>(p.slots.write_slot(row))
                           : -1;
    a.rows->has_initial[i] = part > 0 || p.starts_from_pool(row);
  }
  if (part == 0 && row + 1 == p.sequences.rows) {
    a.rows->offsets[(row + 1) * a.parts] = begin + length;
  }
}

// What the other kernel receives.
inline FusedArguments segments_as_rows(const FusedArguments& a) {
  FusedArguments b = a;
  PrefillProblem& p = b.p;
  const std::int64_t rows = a.p.sequences.rows * a.parts;
  const auto indices = [](const std::int32_t* data) {
    return core::IndexView{data, DType::kInt32, 1, 0, 1};
  };
  p.sequences.rows = rows;
  p.sequences.cu_seqlens = indices(a.rows->offsets);
  p.slots = {};
  p.slots.read = indices(a.rows->read);
  p.slots.write = indices(a.rows->write);
  p.slots.read_limit = 2 * a.p.sequences.rows * a.p.heads * pieces_followed(a);
  p.slots.write_limit = a.p.slots.write_limit;
  p.has_initial_state = indices(a.rows->has_initial);
  p.max_length = 0;
  p.initial = {};
  p.initial.data = a.states;
  p.initial.dtype = DType::kFloat32;
  p.initial.slots = p.slots.read_limit;
  p.initial.slot_stride = kStateElements;
  p.initial.head_stride = std::int64_t{2} * kStateElements * pieces_followed(a);
  p.initial.v_stride = 128;
  p.initial.k_stride = 1;
  b.transfers = false;
  b.rows = nullptr;
  b.dense_states = true;
  set_constants(b);
  return b;
}

}  // namespace hyla::gdn
