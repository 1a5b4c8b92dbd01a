// The value rows that a kernel with operands of fp16 has spoilt (spoilt_rows.cuh), once more: one
// token after another in float32, from the initial state, which is still there. What is right is
// left alone: outputs that are numbers, and checkpoints, so that these have the bits of a call that
// ends there.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/registers.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/kernel_tokens.cuh"
#include "ops/gdn_prefill/segment_rows.cuh"
#include "ops/gdn_prefill/spoilt_rows.cuh"

namespace hyla::gdn {

inline constexpr int kAgainThreads = 128;
static_assert(kRowsPerWarp == 8);

// kRowsPerWarp value rows of a head of a sequence: what a warp looks at.
struct AgainItem {
  int row, head, value;
  int begin, length;

  __device__ __forceinline__ AgainItem(const FusedArguments& a, std::int64_t item) {
    const int groups = static_cast<int>(a.p.V) / kRowsPerWarp;
    const auto pair = static_cast<int>(item / groups);
    value = static_cast<int>(item - static_cast<std::int64_t>(pair) * groups) * kRowsPerWarp;
    row = a.by_heads(pair);
    head = pair - row * static_cast<int>(a.p.heads);
    find_tokens(a.p, row, begin, length);
    if (a.p.slots.read_slot(row) == core::kNullSlot) length = 0;
  }

  __device__ __forceinline__ int chunks() const { return (length + kChunk - 1) / kChunk; }
  // Segments are walked over at once, and each may be spoilt on its own.
  __device__ __forceinline__ int segments(const FusedArguments& a) const {
    return a.transfers && first_chunk(a, chunks(), 1) < chunks() ? a.parts : 1;
  }
  // Where the outputs of its last token begin.
  const __device__ __forceinline__ std::uint16_t* last(const FusedArguments& a, int segment,
                                                       int of) const {
    const int end = of == 1 ? length : min(length, first_chunk(a, chunks(), segment + 1) * kChunk);
    return static_cast<const std::uint16_t*>(a.p.out.data) +
           a.p.out.offset(0, begin + end - 1, head, value);
  }
  // By any thread: is one of the rows spoilt?
  __device__ __forceinline__ bool spoilt(const FusedArguments& a) const {
    if (length == 0) return false;
    bool any = false;
    const int of = segments(a);
    for (int segment = 0; segment < of; ++segment) {
      const uint4 eight = *reinterpret_cast<const uint4*>(last(a, segment, of));
      for (const std::uint32_t two : {eight.x, eight.y, eight.z, eight.w}) {
        any = any || (two & 0xffff) == kSpoiltMark || two >> 16 == kSpoiltMark;
      }
    }
    return any;
  }
};

// The same rows of a checkpoint where they are NaN. Addresses are made one after another: all at
// once they would take more registers than there are.
template <int Columns>
__device__ __forceinline__ void mend_rows(const PoolView& pool, std::int64_t base, int first, int K,
                                          const RowState<Columns>& state) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int column = arch::opaque(c * 32 + lane);
      if (column >= K) continue;
      const std::int64_t at = base + column * pool.k_stride + (first + r) * pool.v_stride;
      if (!isnan(device::load_number(pool.data, pool.dtype, at))) continue;
      device::store_number(pool.data, pool.dtype, at, state.s[r][c]);
    }
  }
}

template <int Columns>
__device__ __forceinline__ void walk_again(const FusedArguments& a, const AgainItem& item) {
  const PrefillProblem& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int K = static_cast<int>(p.K), V = static_cast<int>(p.V), first = item.value;
  const TokenHeads heads = {a.by_q(item.head), a.by_k(item.head), a.by_v(item.head)};
  const int own = lane % kRowsPerWarp, of = item.segments(a);
  // Rows that are spoilt anywhere, and at the end.
  bool spoilt = false, at_end = false;
  for (int segment = 0; segment < of; ++segment) {
    at_end = item.last(a, segment, of)[own] == kSpoiltMark;
    spoilt = spoilt || at_end;
  }
  const unsigned ends = __ballot_sync(device::kFullWarp, at_end);

  RowState<Columns> state{};
  if (of > 1 && p.starts_from_pool(item.row)) {  // the pool may have the final state already
    const int pair = item.row * static_cast<int>(p.heads) + item.head;
    load_rows(as_pool(first_state(a, pair)), 0, first, K, V, state);
  } else if (p.starts_from_pool(item.row)) {
    load_rows(
        p.initial,
        p.slots.read_slot(item.row) * p.initial.slot_stride + item.head * p.initial.head_stride,
        first, K, V, state);
  }
  Checkpoints checkpoints(p, item.row);
  const auto mend = [&](const PoolView& pool, std::int64_t slot) {
    mend_rows(pool, slot * pool.slot_stride + item.head * pool.head_stride, first, K, state);
  };
  checkpoints.keep(0, mend);
#pragma unroll 1
  for (int t = 0; t < item.length; ++t) {
    const TokenStep<Columns> step(p, 0, item.begin + t, item.head, heads, first + own, state);
    if (lane < kRowsPerWarp && spoilt) {
      auto* out = static_cast<__half*>(p.out.data) +
                  p.out.offset(0, item.begin + t, item.head, first + own);
      if (!isfinite(__half2float(*out))) *out = __float2half_rn(step.o);
    }
    step.update(state);
    checkpoints.keep(t + 1, mend);
  }
  const std::int64_t write = p.final.present() ? p.slots.write_slot(item.row) : core::kNullSlot;
  if (write == core::kNullSlot) return;
  const std::int64_t base = write * p.final.slot_stride + item.head * p.final.head_stride;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int column = arch::opaque(c * 32 + lane);
      if (column >= K || (ends >> r & 1) == 0) continue;
      device::store_number(p.final.data, p.final.dtype,
                           base + column * p.final.k_stride + (first + r) * p.final.v_stride,
                           state.s[r][c]);
    }
  }
}

// grid: any number of CTAs. A warp looks at 32 items at once.
template <int Columns>
__global__ void __launch_bounds__(kAgainThreads, 1)
    prefill_again(const __grid_constant__ FusedArguments a) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  constexpr int kWarps = kAgainThreads / 32;
  const std::int64_t items = static_cast<std::int64_t>(a.tasks) * (a.p.V / kRowsPerWarp);
  arch::wait_for_previous_grid();
#pragma unroll 1
  for (std::int64_t from = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * 32;
       from < items; from += static_cast<std::int64_t>(gridDim.x) * kAgainThreads) {
    const bool spoilt = from + lane < items && AgainItem(a, from + lane).spoilt(a);
    unsigned who = __ballot_sync(device::kFullWarp, spoilt);
#pragma unroll 1
    for (; who != 0; who &= who - 1) {
      walk_again<Columns>(a, AgainItem(a, from + __ffs(static_cast<int>(who)) - 1));
    }
  }
}

}  // namespace hyla::gdn
