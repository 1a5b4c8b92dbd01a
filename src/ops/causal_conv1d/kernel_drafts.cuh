// The update of a few tokens a row, where a thread can reach its channels' inputs and windows in
// wide accesses.
//
// A thread walks the tokens of one row for kVec channels, kDraftsAhead of them on their way. At an
// offset every input goes to its column as it passes by; a rolling window is written when it stands
// in the registers, after the last token that counts. Nothing is read twice: out may be x.
#pragma once

#include <type_traits>

#include "ops/causal_conv1d/ask.cuh"
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

// Where a row's tokens lie.
struct SpanBits {
  IndexBits begin, end;  // or its length

  __device__ __forceinline__ void ask(const core::Sequences& s, std::int64_t row) {
    const bool rising = s.cu_seqlens.present();
    begin.ask(rising ? s.cu_seqlens : s.starts, row);
    end.ask(rising ? s.cu_seqlens : s.lengths, rising ? row + 1 : row);
  }
  // Clamped to the `total` tokens there are.
  __device__ __forceinline__ void read(const core::Sequences& s, std::int64_t total,
                                       std::int64_t& first, int& count) const {
    const bool rising = s.cu_seqlens.present();
    first = begin.value(rising ? s.cu_seqlens : s.starts);
    const std::int64_t length = end.value(rising ? s.cu_seqlens : s.lengths) - (rising ? first : 0);
    first = max(std::int64_t{0}, min(first, total));
    count = static_cast<int>(max(std::int64_t{0}, min(length, total - first)));
  }
};

// CTAs of an SM: as many as registers allow without spilling.
template <class P>
constexpr int draft_ctas() {
  constexpr bool kWidePool = sizeof(typename P::State) == 4,
                 kDense = P::kWindows == Windows::kDense;
  constexpr bool kBFloat16 = std::is_same_v<typename P::Io, __nv_bfloat16>;
  if (sizeof(typename P::Io) == 4) return 4;
  if (P::kW < 4) return 6;
  if (kBFloat16 && !kWidePool && !kDense) return 6;
  return !kBFloat16 && kWidePool && kDense ? 4 : 5;
}

// x, out [tokens, C]; weight [C, W]; state [slots, C, L]; grid (channel blocks * B)
template <class P>
__global__ void __launch_bounds__(kStepThreads, draft_ctas<P>())
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
  std::int64_t begin = 0;
  int count = static_cast<int>(d.total);
  SlotBits slots;
  IndexBits offset;
  SpanBits span;
  span.ask(d.sequences, row);
  slots.ask(a.slots, row);
  if (P::kWindows == Windows::kChannels) offset.ask(a.window_offsets, row);
  if (d.sequences.ragged()) span.read(d.sequences, d.total, begin, count);
  const Io* x = static_cast<const Io*>(a.x) + row * a.x_stride + begin * d.x_token_stride + channel;
  Io* out = static_cast<Io*>(a.out) + row * a.out_stride + begin * d.out_token_stride + channel;
  TokenBits<Io, Vec> tokens[kDraftsAhead] = {};
#pragma unroll
  for (int i = 0; i < kDraftsAhead; ++i) {
    ask_if(i < count, x + i * d.x_token_stride, tokens[i].pack);
  }
  FilterBits<Io, W, Vec> filter_bits;
  filter_bits.ask(a.filter, channel);
  const std::int64_t read = slots.read_slot(a.slots, row);
  if (read == core::kNullSlot) return;
  const std::int64_t from = read * a.slot_stride + channel * a.channel_stride;
  std::int64_t window_at = from;
  if (P::kWindows == Windows::kChannels && a.window_offsets.present()) {
    window_at +=
        max(std::int64_t{0}, min(offset.value(a.window_offsets), a.last_offset)) * a.column_stride;
  } else if (P::kWindows == Windows::kChannels) {
    window_at += a.last_offset * a.column_stride;
  }
  WindowBits<P> bits;
  bits.load(a, window_at);
  const std::int64_t write = slots.write_slot(a.slots, read);
  const bool writes = write != core::kNullSlot;
  const std::int64_t to = write * a.slot_stride + channel * a.channel_stride;
  // At an offset the columns that follow the window's; none where it rolls.
  const bool rolls = !a.window_offsets.present();
  const int columns = !rolls && writes ? static_cast<int>(d.columns) : 0;
  // Where it rolls, the tokens after which the window is left.
  int committed = rolls && writes ? count : -1;
  if (rolls && writes && d.commit_lengths.present()) {
    committed =
        static_cast<int>(max(std::int64_t{0}, min(d.commit_lengths.at(row), std::int64_t{count})));
  }

  Filter<Io, W, Vec> filter;
  filter_bits.read(a.filter, channel, filter);
  float window[W - 1][Vec];
  bits.unpack(window);
  if (columns > 0) {
    if (count == 0 && write != read) copy_row<P>(d, from, to);
#pragma unroll
    for (int j = 1; j < W - 1; ++j) {
      if (count > 0) store_column<P>(a, to, j - 1, window[j]);
    }
  }
  if (committed == 0) WindowBits<P>::store(a, to, window);
  const Io* group = x;
#pragma unroll 1
  for (int t = 0; t < count; t += kDraftsAhead) {
    group += kDraftsAhead * d.x_token_stride;
#pragma unroll
    for (int i = 0; i < kDraftsAhead; ++i) {
      if (t + i >= count) break;
      float input[Vec], y[Vec];
      tokens[i].unpack(input);
      ask_if(t + i + kDraftsAhead < count, group + i * d.x_token_stride, tokens[i].pack);
      filter.apply(window, input, y);
      TokenBits<Io, Vec>::store(out + i * d.out_token_stride, y);
      shift<W, Vec>(window, input);
      if (W - 2 + t + i < columns) store_column<P>(a, to, W - 2 + t + i, input);
      if (t + i + 1 == committed) WindowBits<P>::store(a, to, window);
    }
    out += kDraftsAhead * d.out_token_stride;
  }
}

}  // namespace hyla::conv
