// Which chunks of which segments are prepared where only the states between segments are wanted:
// from the chunk on from which on a walk to the segment's end has to start (kernel_transfer.cuh).
// `find_starts` finds it from the gates, as if no key let the state grow. Where one does, the rest
// of that segment is prepared by a second grid, which otherwise ends at once.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/segment_rows.cuh"

namespace hyla::gdn {

struct SpanArguments : FusedArguments {
  bool rest = false;  // what was left out
};

// A segment of a head of a sequence that another one follows: its number, and its chunks.
struct Segment {
  int task, row, number;
  int begin;     // token of the sequence
  int from, to;  // chunks; alike where no walk is needed

  __device__ __forceinline__ Segment(const FusedArguments& a, int index) {
    task = index / (a.parts - 1);
    number = index - task * (a.parts - 1);
    row = a.by_heads(task);
    int length;
    find_tokens(a.p, row, begin, length);
    const int chunks = (length + kChunk - 1) / kChunk;
    from = first_chunk(a, chunks, number);
    to = first_chunk(a, chunks, number + 1);
    if (to == chunks || a.p.slots.read_slot(row) == core::kNullSlot) to = from;
  }
};

// One log2 more than what the walk asks for, whose sums are rounded in another order.
__device__ __forceinline__ float forgotten_before(const FusedArguments& a) {
  const double cutoff = a.p.decay_cutoff_log2;
  const float log2 =
      cutoff > 0 && cutoff < kForgottenLog2 ? static_cast<float>(cutoff) : kForgottenLog2;
  return -log2 - 1.0f;
}

inline constexpr int kStartWarps = 16, kStartThreads = 32 * kStartWarps, kStartChunks = 4;
inline constexpr int kStartRound = kStartWarps * kStartChunks;  // chunks: two a lane of a warp
static_assert(kStartRound == 64);

// grid (segments of all heads)
inline __global__ void __launch_bounds__(kStartThreads)
    find_starts(const __grid_constant__ FusedArguments a) {
  __shared__ std::uint32_t gates[kStartWarps][kStartChunks][2][64];
  __shared__ float decays[kStartRound];  // of chunks, from the end
  __shared__ int found;
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  const int index = static_cast<int>(blockIdx.x);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const Segment segment(a, index);
  ChunkInfo info;
  set_head(a, segment.task - segment.row * static_cast<int>(a.p.heads), info);
  const float forgotten = forgotten_before(a);
  int start = segment.from;
  float after = 0.0f;  // of the chunks behind those of this round
  for (int last = segment.to; last > segment.from; last -= kStartRound) {
#pragma unroll
    for (int i = 0; i < kStartChunks; ++i) {
      const int c = max(segment.from, last - 1 - warp * kStartChunks - i);
      set_tokens(a.p, segment.begin + c * kChunk, kChunk, info);
      load_gates(a.p, info, gates[warp][i], lane);
    }
#pragma unroll
    for (int i = 0; i < kStartChunks; ++i) {
      const int c = last - 1 - warp * kStartChunks - i;
      set_tokens(a.p, segment.begin + max(segment.from, c) * kChunk, kChunk, info);
      scan_gates(a.p, info, gates[warp][i], lane);
      __syncwarp();
      if (lane == 0) {
        decays[warp * kStartChunks + i] =
            c < segment.from ? 0.0f : __uint_as_float(gates[warp][i][0][63]) + kErasedLog2;
      }
    }
    __syncthreads();
    if (warp == 0) {
      const float first = decays[2 * lane], both = first + decays[2 * lane + 1];
      float sum = both;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
      }
      const float before = after + (sum - both);
      int number = 2 * kStartRound;  // of chunks from the end of this round
      if (before + first <= forgotten) {
        number = 2 * lane;
      } else if (after + sum <= forgotten) {
        number = 2 * lane + 1;
      }
      number = __reduce_min_sync(0xffffffffu, number);
      after += __shfl_sync(0xffffffffu, sum, 31);
      if (lane == 0) found = number;
    }
    __syncthreads();
    if (found < kStartRound) {
      start = max(segment.from, last - 1 - found);
      break;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    a.rows->start[index] = start;
    a.rows->grown[index] = 0;
  }
}

// What is to be prepared, as one list of chunks, those of a segment from its end on.
struct Spans {
  int total;
  int ends[kMostSegments];   // of a segment's part of the list
  int token[kMostSegments];  // behind the last of its chunks that are on the list
  int slot[kMostSegments];   // the same: of its record
};

// By all threads of a CTA, with a barrier after it.
__device__ __forceinline__ void load_spans(const SpanArguments& a, Spans& s) {
  const int count = a.tasks * (a.parts - 1);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const Segment segment(a, i);
    const int start = __ldcg(&a.rows->start[i]);
    const int to = a.rest ? start : segment.to;
    const bool any = segment.from < segment.to && (!a.rest || __ldcg(&a.rows->grown[i]) != 0);
    s.ends[i] = any ? to - (a.rest ? segment.from : start) : 0;
    s.token[i] = segment.begin + to * kChunk;
    s.slot[i] = first_chunk_slot(segment.row, segment.begin) + to;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x), each = (count + 31) / 32;
  const int from = min(count, lane * each), to = min(count, from + each);
  int own = 0;
  for (int i = from; i < to; ++i) own += s.ends[i];
  int sum = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  int end = sum - own;
  for (int i = from; i < to; ++i) s.ends[i] = end += s.ends[i];
  if (lane == 31) s.total = sum;
}

// Number `item` of the list: the number of its segment, or -1 where there is none.
__device__ __forceinline__ int find_in_spans(const FusedArguments& a, const Spans& s,
                                             std::int64_t item, ChunkInfo& info,
                                             std::int64_t& record) {
  info.rows = 0;
  if (item >= s.total) return -1;
  const int at = static_cast<int>(item);
  int low = 0, high = a.tasks * (a.parts - 1) - 1;  // the first that ends behind it
  while (low < high) {
    const int middle = (low + high) / 2;
    (s.ends[middle] > at ? high : low) = s.ends[middle] > at ? middle : middle + 1;
  }
  const int back = at - (low > 0 ? s.ends[low - 1] : 0) + 1;
  const int heads = static_cast<int>(a.p.heads), task = low / (a.parts - 1);
  const int head = task - a.by_heads(task) * heads;
  set_head(a, head, info);
  set_tokens(a.p, s.token[low] - back * kChunk, kChunk, info);
  record = static_cast<std::int64_t>(s.slot[low] - back) * heads + head;
  return low;
}

}  // namespace hyla::gdn
