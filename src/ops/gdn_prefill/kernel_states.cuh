// The states between pieces of segments, one after another: S_{s+1} = M_s S_s + N_s in float32. The
// value rows are independent: a CTA has some of them of one head, a thread one key and half of the
// sum. M of the next two segments come while this one's is multiplied by. N_s is overwritten by
// S_{s+1}; where a segment forgets, it is that already.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

inline constexpr int kStatesThreads = 256, kStatesStages = 3;

template <int Rows>
struct StatesShared {
  float matrix[kStatesStages][kStateElements];
  float rows[Rows][128], sums[Rows][128];
  unsigned remember[2];  // bit s: segment s does not forget
  arch::Mbarrier full[kStatesStages];
};

// grid (128 / Rows, heads of sequences)
template <int Rows>
__global__ void __launch_bounds__(kStatesThreads, 1)
    states(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<StatesShared<Rows>*>(memory);
  const int k = static_cast<int>(threadIdx.x) & 127, half = static_cast<int>(threadIdx.x) >> 7;
  const int v = static_cast<int>(blockIdx.x) * Rows;
  const int pair = static_cast<int>(blockIdx.y);
  const int row = pair / static_cast<int>(a.p.heads);
  const bool padding = a.p.slots.read_slot(row) == core::kNullSlot;
  int begin, length;
  find_tokens(a.p, row, begin, length);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStatesStages; ++i) arch::init(shared.full[i], 1);
    arch::fence_mbarrier_init();
  }
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  if (padding) return;
  const int chunks = (length + kChunk - 1) / kChunk;
  // Pieces of parts that another one follows.
  int segments = 0;
  while (segments < a.parts - 1 && first_chunk(a, chunks, segments + 1) < chunks) ++segments;
  segments *= a.cuts;
  if (threadIdx.x < 64) {
    const int i = static_cast<int>(threadIdx.x);
    const bool own = i > 0 && i < segments && *segment_forgets(a, pair, i) == 0;
    const unsigned bits = __ballot_sync(0xffffffffu, own);
    if ((i & 31) == 0) shared.remember[i >> 5] = bits;
  }
  __syncthreads();
  const std::uint64_t remember =
      static_cast<std::uint64_t>(shared.remember[1]) << 32 | shared.remember[0];
  // The next one that remembers.
  const auto after = [&](int s) {
    const std::uint64_t rest = s < 63 ? remember >> (s + 1) : 0;
    return rest == 0 ? segments : s + __ffsll(static_cast<long long>(rest));
  };
  int s = after(0);
  if (s >= segments) return;

  const auto ask = [&](int segment, int place) {
    arch::Mbarrier& full = shared.full[place];
    constexpr std::uint32_t kBytes = kStateElements * sizeof(float);
    arch::arrive_expecting(full, kBytes);
    arch::load_bulk(shared.matrix[place], segment_matrix(a, pair, segment), kBytes, full);
  };
  int ahead = s;  // the next one to ask for
  const auto ask_next = [&](int place) {
    if (ahead >= segments) return;
    if (threadIdx.x == 0) ask(ahead, place);
    ahead = after(ahead);
  };
  for (int i = 0; i < kStatesStages - 1; ++i) ask_next(i);
  int before = -1;  // the segment whose final state is in shared.rows
  float own[Rows];  // of N of segment s
  const auto load_own = [&](int segment) {
    const float* state = segment_state(a, pair, segment);
#pragma unroll
    for (int r = 0; r < Rows; ++r) own[r] = half == 0 ? state[(v + r) * 128 + k] : 0.0f;
  };
  load_own(s);
  for (int n = 0; s < segments; ++n) {
    const int place = n % kStatesStages, next = after(s);
    float* state = segment_state(a, pair, s);
    float sum[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) sum[r] = own[r];
    if (next < segments) load_own(next);
    if (before != s - 1 && half == 0) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        shared.rows[r][k] = segment_state(a, pair, s - 1)[(v + r) * 128 + k];
      }
    }
    __syncthreads();  // the rows are there, and nobody reads the matrix before any more
    ask_next((n + kStatesStages - 1) % kStatesStages);
    arch::wait(shared.full[place], n / kStatesStages & 1);
    const float* matrix = shared.matrix[place] + half * 64 * 128 + k;
#pragma unroll 8
    for (int j = 0; j < 64; j += 4) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = matrix[(j + i) * 128];
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(&shared.rows[r][half * 64 + j]);
        sum[r] = fmaf(x.x, m[0], fmaf(x.y, m[1], fmaf(x.z, m[2], fmaf(x.w, m[3], sum[r]))));
      }
    }
    if (half == 1) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) shared.sums[r][k] = sum[r];
    }
    __syncthreads();
    if (half == 0) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        sum[r] += shared.sums[r][k];
        shared.rows[r][k] = sum[r];
        state[(v + r) * 128 + k] = sum[r];
      }
    }
    before = s;
    s = next;
  }
}

}  // namespace hyla::gdn
