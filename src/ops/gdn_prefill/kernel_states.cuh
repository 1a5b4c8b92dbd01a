// The states between segments, one after another: S_{s+1} = M_s S_s + N_s in float32. The value
// rows are independent: a CTA has kStateRows of one head, a thread one key of each. N_s is
// overwritten by S_{s+1}.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

inline constexpr int kStateRows = 4, kStatesThreads = 128;

// grid (128 / kStateRows, heads of sequences)
__global__ void __launch_bounds__(kStatesThreads) states(const __grid_constant__ FusedArguments a) {
  __shared__ float rows[kStateRows][128];
  const int k = static_cast<int>(threadIdx.x), v = static_cast<int>(blockIdx.x) * kStateRows;
  const int pair = static_cast<int>(blockIdx.y);
  arch::wait_for_previous_grid();
  const int row = pair / static_cast<int>(a.p.heads);
  if (a.p.slots.read_slot(row) == core::kNullSlot) return;
  int begin, length;
  find_tokens(a.p, row, begin, length);
  const int chunks = (length + kChunk - 1) / kChunk;
  float next[kStateRows];
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) next[r] = segment_state(a, pair, 0)[(v + r) * 128 + k];
  for (int s = 1; s < a.parts - 1 && first_chunk(a, chunks, s + 1) < chunks; ++s) {
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) rows[r][k] = next[r];
    __syncthreads();
    float* state = segment_state(a, pair, s);
    const float* matrix = segment_matrix(a, pair, s);
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) next[r] = state[(v + r) * 128 + k];
#pragma unroll 4
    for (int j = 0; j < 128; j += 4) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = matrix[(j + i) * 128 + k];
#pragma unroll
      for (int r = 0; r < kStateRows; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(&rows[r][j]);
        next[r] = fmaf(x.x, m[0], fmaf(x.y, m[1], fmaf(x.z, m[2], fmaf(x.w, m[3], next[r]))));
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) state[(v + r) * 128 + k] = next[r];
  }
}

}  // namespace hyla::gdn
