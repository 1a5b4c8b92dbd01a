// The states between segments, one after another: S_{s+1} = M_s S_s + N_s in float32. The value
// rows are independent: a CTA has kStateRows of one head, a thread one key of half of them. M of
// the next segment comes while this one's is multiplied by. N_s is overwritten by S_{s+1}.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

inline constexpr int kStateRows = 8, kStatesThreads = 256;

struct StatesShared {
  float matrix[2][kStateElements];
  float rows[kStateRows][128];
  arch::Mbarrier full[2];
};

// grid (128 / kStateRows, heads of sequences)
__global__ void __launch_bounds__(kStatesThreads, 1)
    states(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  StatesShared& shared = *reinterpret_cast<StatesShared*>(memory);
  constexpr int kOwn = kStateRows / 2;  // rows of a thread
  const int k = static_cast<int>(threadIdx.x) & 127;
  const int first = (static_cast<int>(threadIdx.x) >> 7) * kOwn;  // of the CTA's rows
  const int v = static_cast<int>(blockIdx.x) * kStateRows + first;
  const int pair = static_cast<int>(blockIdx.y);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const int row = pair / static_cast<int>(a.p.heads);
  if (a.p.slots.read_slot(row) == core::kNullSlot) return;
  int begin, length;
  find_tokens(a.p, row, begin, length);
  const int chunks = (length + kChunk - 1) / kChunk;
  // Segments that another one follows.
  int segments = 0;
  while (segments < a.parts - 1 && first_chunk(a, chunks, segments + 1) < chunks) ++segments;
  if (segments < 2) return;

  const auto ask = [&](int s) {
    arch::Mbarrier& full = shared.full[s & 1];
    constexpr std::uint32_t kBytes = kStateElements * sizeof(float);
    arch::arrive_expecting(full, kBytes);
    arch::load_bulk(shared.matrix[s & 1], segment_matrix(a, pair, s), kBytes, full);
  };
  if (threadIdx.x == 0) {
    arch::init(shared.full[0], 1);
    arch::init(shared.full[1], 1);
    arch::fence_mbarrier_init();
    ask(1);
  }
  float next[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) next[r] = segment_state(a, pair, 0)[(v + r) * 128 + k];
  for (int s = 1; s < segments; ++s) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) shared.rows[first + r][k] = next[r];
    float* state = segment_state(a, pair, s);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) next[r] = state[(v + r) * 128 + k];
    __syncthreads();  // the rows are there, and nobody reads the other matrix any more
    if (threadIdx.x == 0 && s + 1 < segments) ask(s + 1);
    arch::wait(shared.full[s & 1], ((s - 1) >> 1) & 1);
    const float* matrix = shared.matrix[s & 1];
#pragma unroll 8
    for (int j = 0; j < 128; j += 4) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = matrix[(j + i) * 128 + k];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(&shared.rows[first + r][j]);
        next[r] = fmaf(x.x, m[0], fmaf(x.y, m[1], fmaf(x.z, m[2], fmaf(x.w, m[3], next[r]))));
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) state[(v + r) * 128 + k] = next[r];
  }
}

}  // namespace hyla::gdn
