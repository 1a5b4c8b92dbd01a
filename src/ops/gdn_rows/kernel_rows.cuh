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
#include "ops/gdn_rows/token_step.cuh"

namespace hyla::gdn {

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
      const TokenStep<Columns> step(p, row, token, head, {key_head, key_head, head}, own, state);
      float o = step.o;
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
      if (writes) {
        device::store_number(p.out.data, p.out.dtype, p.out.offset(row, token, head, own), o);
      }
      step.update(state);
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
