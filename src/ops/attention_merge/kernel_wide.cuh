// Merges rows that a group of lanes holds whole, in 16-byte accesses: every number is read once,
// and a thread has nothing else to do (norm_gated_rms/kernel_wide.cuh says why).
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/dtype.cuh"
#include "ops/attention_merge/shares.cuh"
#include "problem/attention_merge.h"

namespace hyla::attention {

inline constexpr int kMergeThreads = 128;

template <class In_, class Out_, int Lanes_, int Chunks_>
struct MergePolicy {
  using In = In_;
  using Out = Out_;
  static constexpr int kLanes = Lanes_;
  static constexpr int kChunks = Chunks_;  // 16-byte accesses of a lane, kLanes apart
  static constexpr int kVec = device::kPerChunk<In>;
  static constexpr int kRows = kMergeThreads / kLanes;  // of a CTA
};

// a, b, out [tokens, heads, dim]; a_lse, b_lse, lse [tokens, heads]; grid over rows, kRows a CTA.
// A row is in one warp, whose lanes have all read its logarithms when one of them writes: lse may
// be one of them.
template <class P>
__global__ void __launch_bounds__(kMergeThreads)
    merge_wide(const __grid_constant__ MergeProblem p) {
  using In = typename P::In;
  using Out = typename P::Out;
  const int lane = static_cast<int>(threadIdx.x) % P::kLanes, dim = static_cast<int>(p.dim);
  const std::uint32_t index = blockIdx.x * P::kRows + threadIdx.x / P::kLanes;
  const auto heads = static_cast<std::uint32_t>(p.heads);
  const std::int64_t token = index / heads, head = index % heads;
  const bool inside = token < p.tokens;
  const In* a_row = static_cast<const In*>(p.a.data) + p.a.offset(0, token, head);
  const In* b_row = static_cast<const In*>(p.b.data) + p.b.offset(0, token, head);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  float a_lse = -INFINITY, b_lse = -INFINITY;
  if (inside) {
    a_lse = static_cast<const float*>(p.a_lse.data)[p.a_lse.offset(0, token, head)];
    b_lse = static_cast<const float*>(p.b_lse.data)[p.b_lse.offset(0, token, head)];
  }
  device::Pack<In, P::kVec> a[P::kChunks] = {}, b[P::kChunks] = {};
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    a[c].load_if(inside && d < dim, a_row + d);
    b[c].load_if(inside && d < dim, b_row + d);
  }
  const MergeShares shares(a_lse, b_lse);
  __syncwarp();
  if (lane == 0 && inside && p.lse.present()) {
    static_cast<float*>(p.lse.data)[p.lse.offset(0, token, head)] = shares.lse;
  }
  Out* out = static_cast<Out*>(p.out.data) + p.out.offset(0, token, head);
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    if (!inside || d >= dim) continue;
    float of_a[P::kVec], of_b[P::kVec];
    a[c].unpack(of_a);
    b[c].unpack(of_b);
#pragma unroll
    for (int v = 0; v < P::kVec; ++v) of_a[v] = shares.merged(of_a[v], of_b[v]);
    device::Pack<Out, P::kVec> result;
    result.pack(of_a);
    result.store(out + d);
  }
}

}  // namespace hyla::attention
