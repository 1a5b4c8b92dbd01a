// The states between pieces of segments, one after another: S_{s+1} = M_s S_s + N_s in float32. The
// value rows are independent: a CTA has some of them of one head, a thread one key and half of the
// sum. M of the next two segments come while this one's is multiplied by. N_s is overwritten by
// S_{s+1}; where a segment forgets, it is that already. Heads that remember nothing take no CTA.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

inline constexpr int kStatesThreads = 256, kStatesStages = 3;
inline constexpr int kMostStateRows = 8, kFewStateRows = 4;  // of a CTA at once
inline constexpr int kMostRememberingPairs = 288;            // heads of sequences with segments

struct StatesShared {
  float matrix[kStatesStages][kStateElements];
  float rows[kMostStateRows][128], sums[kMostStateRows][128];
  unsigned remember[kMostRememberingPairs][2];  // bit s of a pair: segment s does not forget
  unsigned pairs[kMostRememberingPairs / 32];   // that remember anything
  arch::Mbarrier full[kStatesStages];
};

// Pieces of parts that another one follows.
__device__ __forceinline__ int count_followed(const FusedArguments& a, int length) {
  const int chunks = (length + kChunk - 1) / kChunk;
  if (chunks == 0) return 0;
  return min(a.parts - 1, (chunks - 1) / first_chunk(a, chunks, 1)) * a.cuts;
}

// Which segments remember, by all threads of a CTA: before and behind the wait for the grid that
// writes it.
struct Remembering {
  int pair[2], piece[2];
  bool followed[2];

  __device__ __forceinline__ explicit Remembering(const FusedArguments& a) {
    const int pieces = pieces_followed(a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kStatesThreads;
      pair[i] = index / pieces, piece[i] = index - pair[i] * pieces;
      followed[i] = false;
      if (pair[i] >= a.tasks) continue;
      const int row = a.by_heads(pair[i]);
      int begin, length;
      find_tokens(a.p, row, begin, length);
      followed[i] = piece[i] > 0 && piece[i] < count_followed(a, length) &&
                    a.p.slots.read_slot(row) != core::kNullSlot;
    }
  }

  // With a barrier in front of it and after it.
  __device__ __forceinline__ void note(const FusedArguments& a, StatesShared& shared) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!followed[i] || *segment_forgets(a, pair[i], piece[i]) != 0) continue;
      atomicOr(&shared.remember[pair[i]][piece[i] >> 5], 1u << (piece[i] & 31));
      atomicOr(&shared.pairs[pair[i] >> 5], 1u << (pair[i] & 31));
    }
  }
};
static_assert(2 * kStatesThreads >= 384);  // pieces of all pairs, see kMostRelayStates

// The n-th pair that remembers.
__device__ __forceinline__ int find_pair(const StatesShared& shared, int n) {
  int word = 0;
  for (; n >= __popc(shared.pairs[word]); ++word) n -= __popc(shared.pairs[word]);
  unsigned left = shared.pairs[word];
  for (; n > 0; --n) left &= left - 1;
  return 32 * word + __ffs(static_cast<int>(left)) - 1;
}

// Rows from v on of a pair. `n`: steps of the CTA.
template <int Rows>
__device__ __forceinline__ void step_states(StatesShared& shared, const FusedArguments& a, int pair,
                                            int v, int& n) {
  const int k = static_cast<int>(threadIdx.x) & 127, half = static_cast<int>(threadIdx.x) >> 7;
  const int segments = pieces_followed(a);  // those that are not there do not remember
  const std::uint64_t remember =
      static_cast<std::uint64_t>(shared.remember[pair][1]) << 32 | shared.remember[pair][0];
  // The next one that remembers.
  const auto after = [&](int s) {
    const std::uint64_t rest = s < 63 ? remember >> (s + 1) : 0;
    return rest == 0 ? segments : s + __ffsll(static_cast<long long>(rest));
  };
  int s = after(0);
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
  for (int i = 0; i < kStatesStages - 1; ++i) ask_next((n + i) % kStatesStages);
  int before = -1;  // the segment whose final state is in shared.rows
  float own[Rows];  // of N of segment s
  const auto load_own = [&](int segment) {
    const float* state = segment_state(a, pair, segment);
#pragma unroll
    for (int r = 0; r < Rows; ++r) own[r] = half == 0 ? state[(v + r) * 128 + k] : 0.0f;
  };
  load_own(s);
  for (; s < segments; ++n) {
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

// grid: any number of CTAs
inline __global__ void __launch_bounds__(kStatesThreads, 1)
    states(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<StatesShared*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const Remembering remembering(a);
  for (int i = thread; i < 2 * kMostRememberingPairs; i += kStatesThreads) {
    shared.remember[i >> 1][i & 1] = 0;
  }
  if (thread < kMostRememberingPairs / 32) shared.pairs[thread] = 0;
  if (thread == 0) {
    for (arch::Mbarrier& full : shared.full) arch::init(full, 1);
    arch::fence_mbarrier_init();
  }
  __syncthreads();
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  remembering.note(a, shared);
  __syncthreads();
  int pairs = 0;
  for (const unsigned word : shared.pairs) pairs += __popc(word);
  // Few value rows, while there is room.
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  int n = 0;
  const auto run = [&]<int Rows>() {
    constexpr int kBlocks = 128 / Rows;
    for (int item = cta; item < pairs * kBlocks; item += ctas) {
      step_states<Rows>(shared, a, find_pair(shared, item / kBlocks), item % kBlocks * Rows, n);
    }
  };
  if (pairs * (128 / kFewStateRows) <= ctas) {
    run.template operator()<kFewStateRows>();
  } else {
    run.template operator()<kMostStateRows>();
  }
}

}  // namespace hyla::gdn
