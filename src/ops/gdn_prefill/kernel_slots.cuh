// Where the records of each row begin when sequences are given by starts and lengths: the sum of
// the chunks of the rows before it. By one CTA.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"

namespace hyla::gdn {

inline constexpr int kSlotThreads = 1024;

// The sum over the threads before this one; `all`: over all of them. `sums` is scratch, free again
// after the next barrier.
__device__ __forceinline__ std::int64_t sum_before(std::int64_t mine,
                                                   std::int64_t (&sums)[kSlotThreads / 32],
                                                   std::int64_t& all) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto scan = [&](std::int64_t x) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const std::int64_t before = __shfl_up_sync(device::kFullWarp, x, d);
      if (lane >= d) x += before;
    }
    return x;
  };
  const std::int64_t upto = scan(mine);
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  if (warp == 0) sums[lane] = scan(sums[lane]);
  __syncthreads();
  all = sums[kSlotThreads / 32 - 1];
  return upto - mine + (warp > 0 ? sums[warp - 1] : 0);
}

struct RowSlots {
  PrefillProblem p;
  int* slots;  // [rows]
};

__global__ void __launch_bounds__(kSlotThreads) find_row_slots(const __grid_constant__ RowSlots a) {
  __shared__ std::int64_t sums[kSlotThreads / 32];
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  // Rows that overlap, as no valid ones do, may have more chunks than an int counts.
  constexpr std::int64_t kMost = 1 << 30;
  const int rows = static_cast<int>(a.p.sequences.rows);
  std::int64_t before = 0;
  for (int first = 0; first < rows; first += kSlotThreads) {
    const int row = first + static_cast<int>(threadIdx.x);
    int begin = 0, length = 0;
    if (row < rows) find_tokens(a.p, row, begin, length);
    std::int64_t all;
    const std::int64_t slot = before + sum_before((length + kChunk - 1) / kChunk, sums, all);
    if (row < rows) a.slots[row] = static_cast<int>(min(slot, kMost));
    before = min(before + all, kMost);
    __syncthreads();
  }
}

}  // namespace hyla::gdn
