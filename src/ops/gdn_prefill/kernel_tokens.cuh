// The kernel that takes every prefill problem: any dims, dtypes, layouts, strides, options; one
// token after another, in float32. A warp owns kRowsPerWarp value rows of one head of one sequence
// and keeps them in registers; lane l holds columns l, l + 32, ... of K.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_rows/token_step.cuh"
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
  const TokenHeads heads = {head / static_cast<int>(p.heads / p.q_heads),
                            head / static_cast<int>(p.heads / p.k_heads),
                            head / static_cast<int>(p.heads / p.v_heads)};
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
      const TokenStep<Columns> step(p, 0, token, head, heads, own, state);
      if (writes) {
        device::store_number(p.out.data, p.out.dtype, p.out.offset(0, token, head, own), step.o);
      }
      step.update(state);
      checkpoints.keep(t + 1, store);
    }
    const std::int64_t write = p.final.present() ? p.slots.write_slot(row) : core::kNullSlot;
    if (write != core::kNullSlot) store(p.final, write);
  }
}

}  // namespace hyla::gdn
