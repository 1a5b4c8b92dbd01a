// The update of a few tokens a row, where a thread can reach its channels' inputs and windows in
// wide accesses.
//
// A thread walks the tokens of one row for kVec channels, the next kDraftsAhead on their way. At an
// offset every input goes to its column as it passes by; a rolling window is written once, after
// the last token that counts.
#pragma once

#include "ops/causal_conv1d/kernel_step.cuh"

namespace hyla::conv {

inline constexpr int kDraftsAhead = 4;

struct DraftArguments {
  StepArguments step;
  core::Sequences sequences;
  std::int64_t total;  // ragged: tokens there are; lengths from the device are clamped to it
  std::int64_t x_token_stride, out_token_stride;
  std::int64_t columns;
  core::IndexView commit_lengths;
};

template <class P>
struct DraftGroup {
  TokenBits<typename P::Io, P::kVec> tokens[kDraftsAhead];

  __device__ __forceinline__ void load(const typename P::Io* x, std::int64_t stride, int count) {
#pragma unroll
    for (int i = 0; i < kDraftsAhead; ++i) {
      if (i < count) tokens[i].load(x + i * stride);
    }
  }
};

template <class P>
__device__ __forceinline__ void store_column(const StepArguments& a, std::int64_t offset,
                                             std::int64_t column, const float (&values)[P::kVec]) {
  device::Pack<typename P::State, P::kVec> pack;
  pack.pack(values);
  pack.store(static_cast<typename P::State*>(a.state) + offset + column * a.column_stride);
}

// No tokens at an offset: the row as it was, if it goes elsewhere.
template <class P>
__device__ __forceinline__ void copy_row(const DraftArguments& d, std::int64_t from,
                                         std::int64_t to) {
  auto* state = static_cast<typename P::State*>(d.step.state);
  for (std::int64_t j = 0; j < d.columns; ++j) {
    device::Pack<typename P::State, P::kVec> pack;
    pack.load(state + from + j * d.step.column_stride);
    pack.store(state + to + j * d.step.column_stride);
  }
}

// x, out [tokens, C]; weight [C, W]; state [slots, C, L]; grid (channel blocks * B)
template <class P>
__global__ void __launch_bounds__(kStepThreads, 4)
    drafts(const __grid_constant__ DraftArguments d) {
  using Io = typename P::Io;
  constexpr int W = P::kW, Vec = P::kVec;
  const StepArguments& a = d.step;
  const std::int64_t channel =
      (std::int64_t{blockIdx.x % a.channel_blocks} * kStepThreads + threadIdx.x) * Vec;
  const std::int64_t row = blockIdx.x / a.channel_blocks;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  if (channel >= a.C) return;
  const bool at_offset = a.window_offsets.present();
  const std::int64_t read = a.slots.read_slot(row);
  std::int64_t begin = d.sequences.begin(row), length = d.sequences.length(row);
  if (d.sequences.ragged()) {
    begin = max(std::int64_t{0}, min(begin, d.total));
    length = max(std::int64_t{0}, min(length, d.total - begin));
  }
  const int count = static_cast<int>(length);
  const Io* x = static_cast<const Io*>(a.x) + row * a.x_stride + begin * d.x_token_stride + channel;
  Io* out = static_cast<Io*>(a.out) + row * a.out_stride + begin * d.out_token_stride + channel;
  DraftGroup<P> next = {};
  next.load(x, d.x_token_stride, count);
  Filter<Io, W, Vec> filter;
  filter.load(a.filter, channel);
  if (read == core::kNullSlot) return;
  const std::int64_t from = read * a.slot_stride + channel * a.channel_stride;
  std::int64_t window_at = from;
  if (P::kWindows == Windows::kChannels) window_at += window_offset(a, row) * a.column_stride;
  WindowBits<P> bits;
  bits.load(a, window_at);
  const std::int64_t write = a.slots.write.present() ? a.slots.write_slot(row) : read;
  const bool writes = write != core::kNullSlot;
  const std::int64_t to = write * a.slot_stride + channel * a.channel_stride;
  int committed = count;
  if (d.commit_lengths.present()) {
    committed = static_cast<int>(max(std::int64_t{0}, min(d.commit_lengths.at(row), length)));
  }

  float window[W - 1][Vec], kept[W - 1][Vec];
  bits.unpack(window);
  bits.unpack(kept);
  if (at_offset && writes) {
    if (count == 0 && write != read) copy_row<P>(d, from, to);
#pragma unroll
    for (int j = 1; j < W - 1; ++j) {
      if (count > 0) store_column<P>(a, to, j - 1, window[j]);
    }
  }
#pragma unroll 1
  for (int t = 0; t < count; t += kDraftsAhead) {
    const DraftGroup<P> now = next;
    x += kDraftsAhead * d.x_token_stride;
    next.load(x, d.x_token_stride, count - t - kDraftsAhead);
#pragma unroll
    for (int i = 0; i < kDraftsAhead; ++i) {
      if (t + i >= count) break;
      float input[Vec], y[Vec];
      now.tokens[i].unpack(input);
      filter.apply(window, input, y);
      TokenBits<Io, Vec>::store(out + i * d.out_token_stride, y);
      shift<W, Vec>(window, input);
      if (t + i < committed) shift<W, Vec>(kept, input);
      if (at_offset && writes && W - 2 + t + i < d.columns) {
        store_column<P>(a, to, W - 2 + t + i, input);
      }
    }
    out += kDraftsAhead * d.out_token_stride;
  }
  if (!at_offset && writes) WindowBits<P>::store(a, to, kept);
}

}  // namespace hyla::conv
