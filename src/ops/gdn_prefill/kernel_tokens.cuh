// The kernel that takes every prefill problem: any dims, dtypes, layouts, strides, options; one
// token after another, in float32. A warp owns kRowsPerWarp value rows of one head of one sequence
// and keeps them in registers; lane l holds columns l, l + 32, ... of K.
#pragma once

#include "ops/gdn_rows/kernel_rows.cuh"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

// The token counts of a row after which its state is kept, one after another.
class Checkpoints {
 public:
  __device__ __forceinline__ Checkpoints(const PrefillProblem& problem, std::int64_t row_number)
      : p(problem), row(row_number) {
    find();
  }

  // Calls store(pool, slot) when the state after `tokens` tokens is one of them.
  template <class Store>
  __device__ __forceinline__ void keep(std::int64_t tokens, Store&& store) {
    if (tokens != offset) return;
    if (p.checkpoints.present()) {
      const std::int64_t to = p.checkpoint_starts.at(row) + index;
      if (to >= 0 && to < p.checkpoints.slots) store(p.checkpoints, to);
    } else if (index < p.checkpoint_slots.columns) {
      const std::int64_t to = p.slots.checked(p.checkpoint_slots.at(row, index), p.final.slots);
      if (to != core::kNullSlot) store(p.final, to);
    }
    ++index;
    find();
  }

 private:
  __device__ __forceinline__ void find() {
    offset = -1;
    if (p.checkpoint_every > 0) {
      offset = (index + 1) * p.checkpoint_every;
    } else if (p.checkpoint_offsets.present() && index < p.checkpoint_offsets.columns) {
      offset = p.checkpoint_offsets.at(row, index);
    }
  }

  const PrefillProblem& p;
  const std::int64_t row;
  std::int64_t index = 0, offset = -1;
};

// grid (ceil(V / kRowsPerCta), heads, rows up to 65535)
template <int Columns>
__global__ void __launch_bounds__(kRowsWarps * 32)
    prefill_tokens(const __grid_constant__ PrefillProblem p) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int head = static_cast<int>(blockIdx.y);
  const int K = static_cast<int>(p.K), V = static_cast<int>(p.V);
  const int first = (static_cast<int>(blockIdx.x) * kRowsWarps + warp) * kRowsPerWarp;
  const int q_head = head / static_cast<int>(p.heads / p.q_heads);
  const int k_head = head / static_cast<int>(p.heads / p.k_heads);
  const int v_head = head / static_cast<int>(p.heads / p.v_heads);
  const int own = first + lane % kRowsPerWarp;  // the row whose sums this lane holds
  const bool writes = lane < kRowsPerWarp && own < V;
  arch::wait_for_previous_grid();

  for (std::int64_t row = blockIdx.z; row < p.sequences.rows; row += gridDim.z) {
    const std::int64_t read = p.slots.read_slot(row);
    if (read == core::kNullSlot) continue;
    const std::int64_t total = p.sequences.tokens;
    const std::int64_t begin = max(std::int64_t{0}, min(p.sequences.begin(row), total));
    const std::int64_t length = max(std::int64_t{0}, min(p.sequences.length(row), total - begin));

    RowState<Columns> state{};
    if (p.starts_from_pool(row)) {
      load_rows(p.initial, read * p.initial.slot_stride + head * p.initial.head_stride, first, K, V,
                state);
    }
    const auto store = [&](const PoolView& pool, std::int64_t slot) {
      store_rows(pool, slot * pool.slot_stride + head * pool.head_stride, first, K, V, state);
    };
    Checkpoints checkpoints(p, row);
    checkpoints.keep(0, store);
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t token = begin + t;
      float q[Columns], k[Columns];
      load_key(p.k, 0, token, k_head, K, k);
      load_key(p.q, 0, token, q_head, K, q);
      const float v =
          own < V ? device::load_number(p.v.data, p.v.dtype, p.v.offset(0, token, v_head, own))
                  : 0.0f;
      const float alpha = gate_alpha(p.gate, 0, token, head);
      const float beta = gate_beta(p.beta, 0, token, head);
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
      if (writes) {
        device::store_number(p.out.data, p.out.dtype, p.out.offset(0, token, head, own),
                             qS + qk * delta);
      }
      const float step = delta * k_factor;
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const float d = __shfl_sync(device::kFullWarp, step, r);
#pragma unroll
        for (int c = 0; c < Columns; ++c) state.s[r][c] = alpha * state.s[r][c] + d * k[c];
      }
      checkpoints.keep(t + 1, store);
    }
    const std::int64_t write = p.final.present() ? p.slots.write_slot(row) : core::kNullSlot;
    if (write != core::kNullSlot) store(p.final, write);
  }
}

}  // namespace hyla::gdn
