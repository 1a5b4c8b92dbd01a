// The kernel that takes every GDN problem of decode, MTP and recurrence: any dims, dtypes, layouts,
// strides, options.
//
// A warp owns kRows value rows of one head of one sequence and keeps them in registers over all its
// tokens; lane l holds columns l, l + 32, ... of K. Per token: norms and both dots by warp sums,
// then the update. With the fused norm the CTAs of a head form a cluster and exchange their sums of
// squares.
#pragma once

#include <cooperative_groups.h>

#include "arch/grid_dependency.cuh"
#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/arguments.cuh"
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

// Sum of squares of a head's outputs over the warps of a CTA and the CTAs of a cluster, always in
// the same order.
struct HeadSum {
  float warp[kRowsWarps];
  float cta[2];  // taken in turns, so that one cluster barrier a token is enough
};

__device__ __forceinline__ float sum_over_head(HeadSum& shared, float o, bool own, int parity) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const float sum = device::sum_lanes<32>(own ? o * o : 0.0f);
  if (lane == 0) shared.warp[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int w = 0; w < kRowsWarps; ++w) total += shared.warp[w];
    shared.cta[parity] = total;
  }
  cluster.sync();
  float total = 0;
  for (unsigned c = 0; c < cluster.num_blocks(); ++c) {
    total += *cluster.map_shared_rank(&shared.cta[parity], c);
  }
  return total;
}

// grid (ceil(V / kRowsPerCta), heads, rows up to 65535); cluster (gridDim.x) when Norm
template <int Columns, bool Norm>
__global__ void __launch_bounds__(kRowsWarps * 32) rows(const __grid_constant__ MtpArguments a) {
  __shared__ HeadSum head_sum;
  const MtpProblem& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int head = static_cast<int>(blockIdx.y);
  const int K = static_cast<int>(p.K), V = static_cast<int>(p.V);
  const int first = (static_cast<int>(blockIdx.x) * kRowsWarps + warp) * kRowsPerWarp;
  const int key_head = head / static_cast<int>(p.heads / p.k_heads);
  const int own = first + lane % kRowsPerWarp;  // the row whose sums this lane holds
  const bool writes = lane < kRowsPerWarp && own < V;
  [[maybe_unused]] int parity = 0;
  arch::wait_for_previous_grid();

  for (std::int64_t row = blockIdx.z; row < p.sequences.rows; row += gridDim.z) {
    MtpRow span;
    if (!find_row(a, row, span)) continue;  // padding, the same for every CTA of the head

    RowState<Columns> state;
    load_rows(p.initial, span.read * p.initial.slot_stride + head * p.initial.head_stride, first, K,
              V, state);
    const auto keep = [&](std::int64_t tokens) {
      if (tokens == span.commit && span.write != core::kNullSlot) {
        store_rows(p.final, span.write * p.final.slot_stride + head * p.final.head_stride, first, K,
                   V, state);
      }
    };
    if (span.commit == 0) keep(0);
    for (std::int64_t t = 0; t < span.length; ++t) {
      const std::int64_t token = span.begin + t;
      float q[Columns], k[Columns];
      load_key(p.k, row, token, key_head, K, k);
      load_key(p.q, row, token, key_head, K, q);
      const float v =
          own < V ? device::load_number(p.v.data, p.v.dtype, p.v.offset(row, token, head, own))
                  : 0.0f;
      const float alpha = gate_alpha(p.gate, row, token, head);
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
      float o = qS + qk * delta;
      if constexpr (Norm) {
        const float sum = sum_over_head(head_sum, o, writes, parity);
        parity ^= 1;
        o *= rsqrtf(sum / static_cast<float>(V) + static_cast<float>(p.norm.eps));
        if (writes) {
          const float z = device::load_number(p.norm.z.data, p.norm.z.dtype,
                                              p.norm.z.offset(row, token, head, own));
          const float weight = device::load_number(p.norm.weight.data, p.norm.weight.dtype,
                                                   own * p.norm.weight.stride);
          o *= weight *
               (p.norm.gate == norm::Activation::kSilu ? device::silu(z) : device::sigmoid(z));
        }
      }
      if (writes)
        device::store_number(p.out.data, p.out.dtype, p.out.offset(row, token, head, own), o);

      const float step = delta * k_factor;
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const float d = __shfl_sync(device::kFullWarp, step, r);
#pragma unroll
        for (int c = 0; c < Columns; ++c) state.s[r][c] = alpha * state.s[r][c] + d * k[c];
      }
      if (p.states_out.present() && t < p.states_out.slots) {
        store_rows(p.states_out,
                   row * p.states_out_row_stride + t * p.states_out.slot_stride +
                       head * p.states_out.head_stride,
                   first, K, V, state);
      }
      if (p.step_slots.present() && t < p.step_slots.columns) {
        const std::int64_t slot = p.slots.checked(p.step_slots.at(row, t), p.final.slots);
        if (slot != core::kNullSlot) {
          store_rows(p.final, slot * p.final.slot_stride + head * p.final.head_stride, first, K, V,
                     state);
        }
      }
      keep(t + 1);
    }
  }
  // Nobody leaves while another CTA of the cluster may still read its sums.
  if constexpr (Norm) cooperative_groups::this_cluster().sync();
}

}  // namespace hyla::gdn
