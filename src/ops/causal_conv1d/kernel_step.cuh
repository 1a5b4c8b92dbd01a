// The update of one token a row, where a thread can reach its channels' inputs and windows in wide
// accesses. A row is little work, so a thread takes several of them and asks for all their memory
// before it uses any; the filter is read once for all.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/causal_conv1d/arguments.cuh"

namespace hyla::conv {

inline constexpr int kStepThreads = 128;
inline constexpr int kStepVec = 4;  // channels a thread

template <class Io_, class State_, int W_, Windows kWindows_, int Rows_, int Vec_ = kStepVec>
struct StepPolicy {
  using Io = Io_;
  using State = State_;
  static constexpr int kW = W_, kVec = Vec_;
  static constexpr int kRows = Rows_;  // in flight
  static constexpr Windows kWindows = kWindows_;
};

// What a step needs of a problem: a kernel of a few microseconds feels the size of its arguments.
struct StepArguments {
  const void* x;
  void *out, *state;
  std::int64_t rows, C;
  std::int64_t x_stride, out_stride;  // of a row
  std::int64_t slot_stride, channel_stride, column_stride;
  std::int64_t last_offset;  // of a window in its row
  std::uint32_t channel_blocks;
  FilterView filter;
  core::Slots slots;
  core::IndexView window_offsets;
};

// First column of the window that row reads.
__device__ __forceinline__ std::int64_t window_offset(const StepArguments& a, std::int64_t row) {
  if (!a.window_offsets.present()) return a.last_offset;
  return max(std::int64_t{0}, min(a.window_offsets.at(row), a.last_offset));
}

// A window of kVec channels as it lies in memory.
template <class P>
struct WindowBits {
  using State = typename P::State;
  static constexpr int kColumns = P::kW - 1;
  static constexpr bool kDense = P::kWindows == Windows::kDense;
  device::Pack<State, kDense ? P::kVec * kColumns : P::kVec> packs[kDense ? 1 : kColumns];

  __device__ __forceinline__ void load(const StepArguments& a, std::int64_t offset) {
    const State* from = static_cast<const State*>(a.state) + offset;
    if constexpr (kDense) {
      packs[0].load(from);
    } else {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) packs[j].load(from + j * a.column_stride);
    }
  }
  __device__ __forceinline__ void unpack(float (&window)[kColumns][P::kVec]) const {
    if constexpr (kDense) {
      float values[P::kVec * kColumns];
      packs[0].unpack(values);
#pragma unroll
      for (int i = 0; i < P::kVec * kColumns; ++i) window[i % kColumns][i / kColumns] = values[i];
    } else {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) packs[j].unpack(window[j]);
    }
  }
  static __device__ __forceinline__ void store(const StepArguments& a, std::int64_t offset,
                                               const float (&window)[kColumns][P::kVec]) {
    State* to = static_cast<State*>(a.state) + offset;
    if constexpr (kDense) {
      float values[P::kVec * kColumns];
#pragma unroll
      for (int i = 0; i < P::kVec * kColumns; ++i) values[i] = window[i % kColumns][i / kColumns];
      device::Pack<State, P::kVec * kColumns> pack;
      pack.pack(values);
      pack.store(to);
    } else {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        device::Pack<State, P::kVec> pack;
        pack.pack(window[j]);
        pack.store(to + j * a.column_stride);
      }
    }
  }
};

// x, out [B, C]; weight [C, W]; state [slots, C, L]; grid (channel blocks * ceil(B / kRows))
template <class P>
__global__ void __launch_bounds__(kStepThreads) step(const __grid_constant__ StepArguments a) {
  using Io = typename P::Io;
  const std::int64_t channel =
      (std::int64_t{blockIdx.x % a.channel_blocks} * kStepThreads + threadIdx.x) * P::kVec;
  const std::int64_t first = std::int64_t{blockIdx.x / a.channel_blocks} * P::kRows;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  if (channel >= a.C) return;
  TokenBits<Io, P::kVec> x[P::kRows];
  WindowBits<P> windows[P::kRows];
  std::int64_t read[P::kRows];
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    read[r] = first + r < a.rows ? a.slots.read_slot(first + r) : core::kNullSlot;
  }
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    if (first + r < a.rows) {
      x[r].load(static_cast<const Io*>(a.x) + (first + r) * a.x_stride + channel);
    }
  }
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    if (read[r] == core::kNullSlot) continue;
    std::int64_t offset = read[r] * a.slot_stride + channel * a.channel_stride;
    if (P::kWindows == Windows::kChannels) offset += window_offset(a, first + r) * a.column_stride;
    windows[r].load(a, offset);
  }
  // Behind the windows: what is read as numbers is waited for, and so are requests behind it.
  Filter<Io, P::kW, P::kVec> filter;
  filter.load(a.filter, channel);
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    if (read[r] == core::kNullSlot) continue;
    float window[P::kW - 1][P::kVec], input[P::kVec], y[P::kVec];
    windows[r].unpack(window);
    x[r].unpack(input);
    filter.apply(window, input, y);
    TokenBits<Io, P::kVec>::store(static_cast<Io*>(a.out) + (first + r) * a.out_stride + channel,
                                  y);
    const std::int64_t write = a.slots.write.present() ? a.slots.write_slot(first + r) : read[r];
    if (write == core::kNullSlot) continue;
    shift<P::kW, P::kVec>(window, input);
    WindowBits<P>::store(a, write * a.slot_stride + channel * a.channel_stride, window);
  }
}

}  // namespace hyla::conv
