// A warp's value rows in registers and what one token does to them, for the kernels that take
// everything: any dims, dtypes, layouts and strides, in float32. Lane l holds columns l, l + 32,
// ... of K; lane r holds the sums of row r.
#pragma once

#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_rows/gates.cuh"

namespace hyla::gdn {

inline constexpr int kRowsPerWarp = 8;
inline constexpr int kRowsWarps = 4;
inline constexpr int kRowsPerCta = kRowsPerWarp * kRowsWarps;

template <int Columns>
struct RowState {
  float s[kRowsPerWarp][Columns];
};

// Rows [first, first + kRowsPerWarp) of a state whose [K, V] matrix starts at `base`; those past V
// are zero.
template <int Columns>
__device__ __forceinline__ void load_rows(const PoolView& pool, std::int64_t base, int first, int K,
                                          int V, RowState<Columns>& state) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    const int column = c * 32 + lane;
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const bool inside = column < K && first + r < V;
      state.s[r][c] =
          inside ? device::load_number(pool.data, pool.dtype,
                                       base + column * pool.k_stride + (first + r) * pool.v_stride)
                 : 0.0f;
    }
  }
}

template <int Columns>
__device__ __forceinline__ void store_rows(const PoolView& pool, std::int64_t base, int first,
                                           int K, int V, const RowState<Columns>& state) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    const int column = c * 32 + lane;
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      if (column < K && first + r < V) {
        device::store_number(pool.data, pool.dtype,
                             base + column * pool.k_stride + (first + r) * pool.v_stride,
                             state.s[r][c]);
      }
    }
  }
}

template <int Columns>
__device__ __forceinline__ void load_key(const core::TokenView& view, std::int64_t row,
                                         std::int64_t token, int head, int K, float (&x)[Columns]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::int64_t base = view.offset(row, token, head);
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    const int column = c * 32 + lane;
    x[c] = column < K ? device::load_number(view.data, view.dtype, base + column * view.dim_stride)
                      : 0.0f;
  }
}

// The heads that one head of the outputs reads.
struct TokenHeads {
  int q, k, v;
};

// o is the output of row `own` of V, the row whose sums this lane holds.
template <int Columns>
struct TokenStep {
  float k[Columns];
  float alpha, step;  // S' = alpha S + step k, the step of the own row
  float o;

  // `row` is 0 where tokens count from the start of the batch.
  __device__ __forceinline__ TokenStep(const Problem& p, std::int64_t row, std::int64_t token,
                                       int head, const TokenHeads& heads, int own,
                                       const RowState<Columns>& state) {
    const int K = static_cast<int>(p.K), V = static_cast<int>(p.V);
    float q[Columns];
    load_key(p.k, row, token, heads.k, K, k);
    load_key(p.q, row, token, heads.q, K, q);
    const float v =
        own < V ? device::load_number(p.v.data, p.v.dtype, p.v.offset(row, token, heads.v, own))
                : 0.0f;
    alpha = gate_alpha(p.gate, row, token, head);
    const float beta = gate_beta(p.beta, row, token, head);
    float kk = 0, qq = 0, qk = 0;
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      kk += k[c] * k[c];
      qq += q[c] * q[c];
      qk += q[c] * k[c];
    }
    float k_factor = 1.0f, q_factor = static_cast<float>(p.scale);
    if (p.l2norm) {
      const float eps = static_cast<float>(p.l2norm_eps);
      k_factor = rsqrtf(device::sum_lanes<32>(kk) + eps);
      q_factor *= rsqrtf(device::sum_lanes<32>(qq) + eps);
    }
    qk = device::sum_lanes<32>(qk) * k_factor * q_factor;

    float k_dot[kRowsPerWarp] = {}, q_dot[kRowsPerWarp] = {};
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        k_dot[r] += state.s[r][c] * k[c];
        q_dot[r] += state.s[r][c] * q[c];
      }
    }
    const float kS = device::reduce_scatter<32>(k_dot) * k_factor * alpha;
    const float qS = device::reduce_scatter<32>(q_dot) * q_factor * alpha;
    const float delta = beta * (v - kS);
    o = qS + qk * delta;
    step = delta * k_factor;
  }

  __device__ __forceinline__ void update(RowState<Columns>& state) const {
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const float d = __shfl_sync(device::kFullWarp, step, r);
#pragma unroll
      for (int c = 0; c < Columns; ++c) state.s[r][c] = alpha * state.s[r][c] + d * k[c];
    }
  }
};

}  // namespace hyla::gdn
