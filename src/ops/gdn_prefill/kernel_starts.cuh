// From which chunk on a walk to the end of a segment has to start: whatever state is there, what is
// left of it at the end lies below the numbers of float32 (segments.cuh). Found from the gates, as if
// no key let the state grow. And what else stands before the walks: rows of segments, and the
// initial states.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/segment_list.cuh"

namespace hyla::gdn {

// One log2 more than what the walk asks for, whose sums are rounded in another order.
__device__ __forceinline__ float forgotten_before(const FusedArguments& a) {
  const double cutoff = a.p.decay_cutoff_log2;
  const float log2 =
      cutoff > 0 && cutoff < kForgottenLog2 ? static_cast<float>(cutoff) : kForgottenLog2;
  return -log2 - 1.0f;
}

// The initial state of a sequence's head, as float32. By all threads of a CTA.
__device__ __forceinline__ void copy_initial(const FusedArguments& a, const Segment& segment) {
  const PoolView& pool = a.p.initial;
  const std::int64_t base =
      a.p.slots.read_slot(segment.row) * pool.slot_stride + segment.head * pool.head_stride;
  float* const to = first_state(a, segment.task);
  for (int i = static_cast<int>(threadIdx.x); i < kStateElements; i += blockDim.x) {
    const int v = i >> 7, k = i & 127;
    to[i] =
        device::load_number(pool.data, pool.dtype, base + v * pool.v_stride + k * pool.k_stride);
  }
}

inline constexpr int kStartWarps = 16, kStartThreads = 32 * kStartWarps, kStartChunks = 4;
inline constexpr int kStartRound = kStartWarps * kStartChunks;  // chunks: two a lane of a warp
static_assert(kStartRound == 64);

// grid (segments of all heads)
inline __global__ void __launch_bounds__(kStartThreads, 2)
    find_starts(const __grid_constant__ FusedArguments a) {
  __shared__ std::uint32_t gates[kStartWarps][kStartChunks][2][64];
  __shared__ float decays[kStartRound];  // of chunks, from the end
  __shared__ int found;
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  const int index = static_cast<int>(blockIdx.x);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const Segment segment(a, index);
  if (segment.number == 0) {
    if (segment.head == 0) write_segment_rows(a, segment.row);
    if (a.p.slots.read_slot(segment.row) != core::kNullSlot && a.p.starts_from_pool(segment.row)) {
      copy_initial(a, segment);
    }
  }
  ChunkInfo info;
  set_head(a, segment.head, info);
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
  if (threadIdx.x == 0) a.rows->start[index] = start;
}

}  // namespace hyla::gdn
