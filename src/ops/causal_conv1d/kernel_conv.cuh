// Causal depthwise convolution, prefill and update, over any strides.
//
// A thread owns Vec neighbouring channels and walks a run of tokens with the last W-1 inputs in
// registers, so an input is read once. Vec > 1 needs channels that lie side by side and aligned.
// The CTA that reads a row's windows (run 0) also writes them, after a barrier, so a slot may be
// updated in place.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "problem/conv.h"

namespace hyla::conv {

inline constexpr int kThreads = 128;
inline constexpr int kRun = 64;         // tokens of a run: W-1 inputs are read twice for every kRun
inline constexpr int kAhead = 8;        // tokens whose loads are in flight together
inline constexpr int kMaxColumns = 16;  // columns of a rolling row that a thread can hold

// How a thread reaches the windows of its neighbouring channels.
enum class Windows {
  kScattered,  // element by element
  kDense,      // [C, W-1] without gaps: one run of Vec * (W-1) elements
  kChannels,   // channels side by side: one run of Vec elements a column
};

// Prefill and update differ in where the final window goes.
struct ConvArguments {
  Problem p;
  std::int64_t total;  // ragged: tokens there are; lengths from the device are clamped to it
  core::IndexView has_initial_state, checkpoint_offsets, checkpoint_slots, commit_lengths;
  bool update;
  Windows windows;
};

struct Row {
  std::int64_t row, begin, length, read, write;
  bool from_pool;
};

__device__ __forceinline__ bool find_row(const ConvArguments& a, std::int64_t index, Row& row) {
  const Problem& p = a.p;
  row.row = index;
  row.read = p.slots.read_slot(index);
  if (row.read == core::kNullSlot) return false;
  row.write = p.state.present() ? p.slots.write_slot(index) : core::kNullSlot;
  row.begin = p.sequences.begin(index);
  row.length = p.sequences.length(index);
  if (p.sequences.ragged()) {
    row.begin = max(std::int64_t{0}, min(row.begin, a.total));
    row.length = max(std::int64_t{0}, min(row.length, a.total - row.begin));
  }
  row.from_pool =
      p.state.present() && (!a.has_initial_state.present() || a.has_initial_state.at(index) != 0);
  return true;
}

// Vec channels of one token as they lie in memory.
template <class Io, int Vec>
struct TokenBits {
  device::Pack<Io, Vec> pack;

  __device__ __forceinline__ void load(const Io* from) { pack.load(from); }
  __device__ __forceinline__ void unpack(float (&values)[Vec]) const { pack.unpack(values); }
  static __device__ __forceinline__ void store(Io* to, const float (&values)[Vec]) {
    device::Pack<Io, Vec> result;
    result.pack(values);
    result.store(to);
  }
};

template <class Io>
struct TokenBits<Io, 1> {
  Io value;

  __device__ __forceinline__ void load(const Io* from) { value = *from; }
  __device__ __forceinline__ void unpack(float (&values)[1]) const {
    values[0] = device::to_float(value);
  }
  static __device__ __forceinline__ void store(Io* to, const float (&values)[1]) {
    *to = device::from_float<Io>(values[0]);
  }
};

template <class Io, int Vec>
__device__ __forceinline__ void load_token(const Io* from, float (&values)[Vec]) {
  TokenBits<Io, Vec> bits;
  bits.load(from);
  bits.unpack(values);
}

// One channel's inputs before the call: the window, or all columns of a rolling row that has more.
struct Past {
  float values[kMaxColumns];
  int count;
};

__device__ __forceinline__ void load_past(const ConvArguments& a, const Row& row,
                                          std::int64_t channel, Past& past) {
  const Problem& p = a.p;
  past.count = static_cast<int>(p.window_offsets.present() ? p.W - 1 : p.state.columns);
  const std::int64_t first = p.window_offset(row.row) + (p.W - 1) - past.count;
  for (int i = 0; i < past.count; ++i) {
    past.values[i] = row.from_pool
                         ? device::load_number(p.state.data, p.state.dtype,
                                               p.state.offset(row.read, channel, first + i))
                         : 0.0f;
  }
}

// Inputs [first, last) of the channel, past ones first, into the columns from 0 on.
__device__ __forceinline__ void store_columns(const ConvArguments& a, const Row& row,
                                              std::int64_t slot, std::int64_t channel,
                                              const Past& past, std::int64_t first,
                                              std::int64_t last) {
  const Problem& p = a.p;
  if (slot == core::kNullSlot) return;
  last = min(last, first + p.state.columns);
  for (std::int64_t i = first; i < last; ++i) {
    const float value =
        i < past.count
            ? past.values[i]
            : device::load_number(p.x.data, p.x.dtype,
                                  p.x.offset(row.row, row.begin + i - past.count, channel));
    device::store_number(p.state.data, p.state.dtype, p.state.offset(slot, channel, i - first),
                         value);
  }
}

// What one channel of a row leaves in the pool.
__device__ __noinline__ void store_windows(const ConvArguments& a, const Row& row,
                                           std::int64_t channel) {
  const Problem& p = a.p;
  Past past;
  load_past(a, row, channel, past);
  if (!a.update) {
    std::int64_t before = -1;
    for (std::int64_t i = 0; a.checkpoint_offsets.present() && i < a.checkpoint_offsets.columns;
         ++i) {
      const std::int64_t tokens = a.checkpoint_offsets.at(row.row, i);
      if (tokens <= before || tokens > row.length) break;
      before = tokens;
      const std::int64_t slot = p.slots.checked(a.checkpoint_slots.at(row.row, i), p.state.slots);
      store_columns(a, row, slot, channel, past, tokens, tokens + past.count);
    }
    store_columns(a, row, row.write, channel, past, row.length, row.length + past.count);
  } else if (!p.window_offsets.present()) {
    std::int64_t tokens = row.length;
    if (a.commit_lengths.present()) {
      tokens = max(std::int64_t{0}, min(a.commit_lengths.at(row.row), row.length));
    }
    store_columns(a, row, row.write, channel, past, tokens, tokens + past.count);
  } else if (row.length > 0) {
    store_columns(a, row, row.write, channel, past, 1, past.count + row.length);
  } else if (row.write != core::kNullSlot && row.write != row.read) {
    for (std::int64_t i = 0; i < p.state.columns; ++i) {  // no tokens: the row as it was
      const float value =
          device::load_number(p.state.data, p.state.dtype, p.state.offset(row.read, channel, i));
      device::store_number(p.state.data, p.state.dtype, p.state.offset(row.write, channel, i),
                           value);
    }
  }
}

// The W-1 columns from `column` on of Vec channels.
template <int W, int Vec>
__device__ __forceinline__ void load_window(const ConvArguments& a, std::int64_t slot,
                                            std::int64_t channel, std::int64_t column,
                                            float (&window)[W - 1][Vec]) {
  const WindowPool& pool = a.p.state;
  const std::int64_t offset = pool.offset(slot, channel, column);
  if (Vec > 1 && a.windows == Windows::kDense) {
    float values[Vec * (W - 1)];
    if constexpr (Vec > 1) device::load_wide(pool.data, pool.dtype, offset, values);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
#pragma unroll
      for (int v = 0; v < Vec; ++v) window[j][v] = values[v * (W - 1) + j];
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    const std::int64_t at = offset + j * pool.column_stride;
    if (Vec > 1 && a.windows == Windows::kChannels) {
      if constexpr (Vec > 1) device::load_wide(pool.data, pool.dtype, at, window[j]);
    } else {
      device::load_numbers(pool.data, pool.dtype, at, pool.channel_stride, window[j]);
    }
  }
}

template <int W, int Vec>
__device__ __forceinline__ void store_window(const ConvArguments& a, std::int64_t slot,
                                             std::int64_t channel,
                                             const float (&window)[W - 1][Vec]) {
  const WindowPool& pool = a.p.state;
  const std::int64_t offset = pool.offset(slot, channel, 0);
  if (Vec > 1 && a.windows == Windows::kDense) {
    float values[Vec * (W - 1)];
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
#pragma unroll
      for (int v = 0; v < Vec; ++v) values[v * (W - 1) + j] = window[j][v];
    }
    if constexpr (Vec > 1) device::store_wide(pool.data, pool.dtype, offset, values);
    return;
  }
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    const std::int64_t at = offset + j * pool.column_stride;
    if (Vec > 1 && a.windows == Windows::kChannels) {
      if constexpr (Vec > 1) device::store_wide(pool.data, pool.dtype, at, window[j]);
    } else {
#pragma unroll
      for (int v = 0; v < Vec; ++v) {
        device::store_number(pool.data, pool.dtype, at + v * pool.channel_stride, window[j][v]);
      }
    }
  }
}

// Is the row's last window all that it leaves in the pool, in the columns from 0 on? Then it is
// still in registers.
__device__ __forceinline__ bool leaves_last_window(const ConvArguments& a, const Row& row) {
  if (a.checkpoint_offsets.present() || a.commit_lengths.present()) return false;
  if (!a.p.window_offsets.present()) return a.p.state.columns == a.p.W - 1;
  return !a.update || row.length == 1;
}

// x, out [tokens, C]; weight [C, W]; state [slots, C, L]
// grid (ceil(C / (Vec * kThreads)), runs in flight, rows up to 65535)
template <class Io, int W, int Vec>
__global__ void __launch_bounds__(kThreads) convolve(const __grid_constant__ ConvArguments a) {
  const Problem& p = a.p;
  const std::int64_t first_channel = std::int64_t{blockIdx.x} * kThreads * Vec;
  const std::int64_t channel = first_channel + threadIdx.x * Vec;
  const bool active = channel < p.C;
  arch::wait_for_previous_grid();
  float weight[W][Vec] = {}, bias[Vec] = {};
  if (active) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      device::load_numbers(p.weight.data, p.weight.dtype,
                           channel * p.weight.channel_stride + j * p.weight.tap_stride,
                           p.weight.channel_stride, weight[j]);
    }
    if (p.bias.present()) {
      device::load_numbers(p.bias.data, p.bias.dtype, channel * p.bias.stride, p.bias.stride, bias);
    }
  }
  for (std::int64_t index = blockIdx.z; index < p.sequences.rows; index += gridDim.z) {
    Row row;
    if (!find_row(a, index, row)) continue;
    float window[W - 1][Vec] = {};
    if (blockIdx.y == 0 && active && row.from_pool) {
      load_window<W, Vec>(a, row.read, channel, p.window_offset(index), window);
    }
    const Io* x = static_cast<const Io*>(p.x.data) + p.x.offset(index, row.begin, channel);
    Io* out = static_cast<Io*>(p.out.data) + p.out.offset(index, row.begin, channel);
    for (std::int64_t first = std::int64_t{blockIdx.y} * kRun; first < row.length && active;
         first += std::int64_t{gridDim.y} * kRun) {
      if (first > 0) {
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
          load_token<Io, Vec>(x + (first - (W - 1) + j) * p.x.token_stride, window[j]);
        }
      }
      const std::int64_t last = min(first + kRun, row.length);
      for (std::int64_t t = first; t < last; t += kAhead) {
        TokenBits<Io, Vec> tokens[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (t + i < last) tokens[i].load(x + (t + i) * p.x.token_stride);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (t + i >= last) break;
          float now[Vec], y[Vec];
          tokens[i].unpack(now);
#pragma unroll
          for (int v = 0; v < Vec; ++v) {
            y[v] = bias[v] + weight[W - 1][v] * now[v];
#pragma unroll
            for (int j = 0; j < W - 1; ++j) y[v] += weight[j][v] * window[j][v];
            if (p.activation == Activation::kSilu) {
              y[v] = sizeof(Io) == 2 ? device::fast_silu(y[v]) : device::silu(y[v]);
            }
#pragma unroll
            for (int j = 0; j + 1 < W - 1; ++j) window[j][v] = window[j + 1][v];
            window[W - 2][v] = now[v];
          }
          TokenBits<Io, Vec>::store(out + (t + i) * p.out.token_stride, y);
        }
      }
    }
    if (blockIdx.y != 0 || !p.state.present()) continue;
    if (leaves_last_window(a, row)) {
      if (!active || row.write == core::kNullSlot) continue;
      if (row.length > kRun) {  // other CTAs had the end of the row
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
          load_token<Io, Vec>(x + (row.length - (W - 1) + j) * p.x.token_stride, window[j]);
        }
      }
      store_window<W, Vec>(a, row.write, channel, window);
      continue;
    }
    // Whatever else it leaves goes channel by channel, once all threads have read their windows.
    __syncthreads();
    for (std::int64_t c = first_channel + threadIdx.x; c < min(p.C, first_channel + kThreads * Vec);
         c += kThreads) {
      store_windows(a, row, c);
    }
  }
}

}  // namespace hyla::conv
