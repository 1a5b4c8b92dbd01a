// Causal depthwise convolution of rows of tokens, prefill and update, over any strides.
//
// Rows are cut into runs of 2^run_log2 tokens, one a CTA. A thread owns Vec neighbouring channels
// and keeps the last W-1 inputs in registers while the next tokens are on their way. The CTA of a
// row's first run reads its window from the pool and leaves the ones that follow.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/causal_conv1d/arguments.cuh"
#include "ops/causal_conv1d/windows.cuh"

namespace hyla::conv {

inline constexpr int kThreads = 128;
// Channels a thread: more leave fewer warps to hide the exponentials.
inline constexpr int kVec = 4;

// Tokens whose loads are in flight together.
template <class Io>
inline constexpr int kAhead = sizeof(Io) == 2 ? 8 : 4;

// CTAs of an SM that registers leave room for; one more would spill.
template <class Io, int Vec>
inline constexpr int kResident = Vec == 1          ? 1
                                 : sizeof(Io) == 2 ? 5
                                                   : 4;

struct Runs {
  std::uint32_t row, first, step;  // runs first, first + step, ... of a row
};

// By cu_seqlens: row i has the items from cu_seqlens[i] / run + i on, at least one and at least as
// many as it has runs. Every round narrows the rows to a 32nd.
__device__ __forceinline__ Runs find_by_offsets(const core::Sequences& sequences, int run_log2,
                                                std::int64_t item) {
  const std::int64_t lane = threadIdx.x & 31;
  const auto first_item = [&](std::int64_t row) {
    return (max(std::int64_t{0}, sequences.cu_seqlens.at(row)) >> run_log2) + row;
  };
  std::int64_t low = 0, count = sequences.rows;
  while (count > 1) {
    const std::int64_t step = (count + 31) / 32, row = lane * step;
    const bool reached = row < count && first_item(low + row) <= item;
    const int reached_lanes = __popc(__ballot_sync(0xffffffffu, reached));
    const std::int64_t skipped = max(0, reached_lanes - 1) * step;
    low += skipped;
    count = min(step, count - skipped);
  }
  return {static_cast<std::uint32_t>(low),
          static_cast<std::uint32_t>(max(std::int64_t{0}, item - first_item(low))), 0};
}

__device__ __forceinline__ Runs find_runs(const ConvArguments& a) {
  const std::uint32_t item = blockIdx.x / a.channel_blocks;
  if (a.runs_per_row == 0) return find_by_offsets(a.p.sequences, a.run_log2, item);
  return {item / a.runs_per_row, item % a.runs_per_row, a.runs_per_row};
}

// Inputs in flight.
template <class Io, int Vec>
struct TokenGroup {
  TokenBits<Io, Vec> tokens[kAhead<Io>];

  __device__ __forceinline__ void load(const Io* x, std::int64_t stride, int count) {
#pragma unroll
    for (int i = 0; i < kAhead<Io>; ++i) {
      if (i < count) tokens[i].load(x + i * stride);
    }
  }
};

// One run of a row. False: there is none, or the row is padding.
template <class Io, int W, int Vec>
__device__ __forceinline__ bool convolve_run(const ConvArguments& a, std::uint32_t index,
                                             std::uint32_t run, std::uint32_t channel) {
  constexpr int kGroup = kAhead<Io>;
  const Problem& p = a.p;
  Row row;
  find_tokens(a, index, row);
  const std::int64_t first = static_cast<std::int64_t>(run) << a.run_log2;
  if (run > 0 && first >= row.length) return false;
  const int count = static_cast<int>(min(std::int64_t{1} << a.run_log2, row.length - first));
  const std::int64_t x_stride = p.x.token_stride, out_stride = p.out.token_stride;
  const Io* x = static_cast<const Io*>(p.x.data) + p.x.offset(index, row.begin + first, channel);
  TokenGroup<Io, Vec> next = {};
  next.load(x, x_stride, count);
  TokenBits<Io, Vec> earlier[W - 1] = {};
  if (run > 0) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) earlier[j].load(x + (j - (W - 1)) * x_stride);
  }
  Filter<Io, W, Vec> filter;
  filter.load(a.filter, channel);
  if (!find_slots(a, row)) return false;
  float window[W - 1][Vec] = {};
  if (run > 0) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) earlier[j].unpack(window[j]);
  } else if (row.from_pool) {
    load_window<W, Vec>(a, row.read, channel, p.window_offset(index), window);
  }
  Io* out = static_cast<Io*>(p.out.data) + p.out.offset(index, row.begin + first, channel);
#pragma unroll 1
  for (int t = 0; t < count; t += kGroup) {
    const TokenGroup<Io, Vec> now = next;
    x += kGroup * x_stride;
    next.load(x, x_stride, count - t - kGroup);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      float input[Vec], y[Vec];
      now.tokens[i].unpack(input);
      filter.apply(window, input, y);
      shift<W, Vec>(window, input);
      if (t + i < count) TokenBits<Io, Vec>::store(out + i * out_stride, y);
    }
    out += kGroup * out_stride;
  }
  return true;
}

// x, out [tokens, C]; weight [C, W]; state [slots, C, L]; grid (channel blocks * runs)
template <class Io, int W, int Vec>
__global__ void __launch_bounds__(kThreads, kResident<Io, Vec>)
    convolve(const __grid_constant__ ConvArguments a) {
  const std::uint32_t channel = (blockIdx.x % a.channel_blocks * kThreads + threadIdx.x) * Vec;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const Runs runs = find_runs(a);
  if (channel >= a.p.C) return;
  std::uint32_t run = runs.first;
  while (convolve_run<Io, W, Vec>(a, runs.row, run, channel) && runs.step > 0) run += runs.step;
  if (runs.first == 0 && a.p.state.present()) leave_windows<Io, W, Vec>(a, runs.row, channel);
}

}  // namespace hyla::conv
