// What a row reads from the pool and leaves in it. A thread touches the columns of its own channels
// only, so a slot is updated in place without a barrier.
#pragma once

#include "ops/causal_conv1d/arguments.cuh"

namespace hyla::conv {

struct Row {
  std::int64_t row, begin, length, read, write;
  bool from_pool;  // otherwise everything before the call is zero
};

__device__ __forceinline__ void find_tokens(const ConvArguments& a, std::int64_t index, Row& row) {
  const core::Sequences& sequences = a.p.sequences;
  row.row = index;
  row.begin = sequences.begin(index);
  row.length = sequences.length(index);
  if (sequences.ragged()) {
    row.begin = max(std::int64_t{0}, min(row.begin, a.total));
    row.length = max(std::int64_t{0}, min(row.length, a.total - row.begin));
  }
}

// False: the row is padding.
__device__ __forceinline__ bool find_slots(const ConvArguments& a, Row& row) {
  const Problem& p = a.p;
  row.read = p.slots.read_slot(row.row);
  if (row.read == core::kNullSlot) return false;
  row.write = p.state.present() ? p.slots.write_slot(row.row) : core::kNullSlot;
  row.from_pool =
      p.state.present() && (!a.has_initial_state.present() || a.has_initial_state.at(row.row) != 0);
  return true;
}

// One column of Vec channels.
template <int Vec>
__device__ __forceinline__ void load_column(const ConvArguments& a, std::int64_t slot,
                                            std::int64_t channel, std::int64_t column,
                                            float (&values)[Vec]) {
  const WindowPool& pool = a.p.state;
  const std::int64_t at = pool.offset(slot, channel, column);
  if constexpr (Vec > 1) {
    if (a.windows == Windows::kChannels) {
      device::load_wide(pool.data, pool.dtype, at, values);
      return;
    }
  }
  device::load_numbers(pool.data, pool.dtype, at, pool.channel_stride, values);
}

template <int Vec>
__device__ __forceinline__ void store_column(const ConvArguments& a, std::int64_t slot,
                                             std::int64_t channel, std::int64_t column,
                                             const float (&values)[Vec]) {
  const WindowPool& pool = a.p.state;
  const std::int64_t at = pool.offset(slot, channel, column);
  if constexpr (Vec > 1) {
    if (a.windows == Windows::kChannels) {
      device::store_wide(pool.data, pool.dtype, at, values);
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < Vec; ++v) {
    device::store_number(pool.data, pool.dtype, at + v * pool.channel_stride, values[v]);
  }
}

// The W-1 columns from `column` on.
template <int W, int Vec>
__device__ __forceinline__ void load_window(const ConvArguments& a, std::int64_t slot,
                                            std::int64_t channel, std::int64_t column,
                                            float (&window)[W - 1][Vec]) {
  if constexpr (Vec > 1) {
    if (a.windows == Windows::kDense) {
      float values[Vec * (W - 1)];
      device::load_wide(a.p.state.data, a.p.state.dtype, a.p.state.offset(slot, channel, 0),
                        values);
#pragma unroll
      for (int i = 0; i < Vec * (W - 1); ++i) window[i % (W - 1)][i / (W - 1)] = values[i];
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < W - 1; ++j) load_column(a, slot, channel, column + j, window[j]);
}

// Everything that one row knows about a thread's channels, oldest first: `past` inputs from before
// the call, then its tokens.
template <class Io, int W, int Vec>
struct History {
  const ConvArguments& a;
  const Row& row;
  std::int64_t channel;
  std::int64_t past;  // W-1, or all columns of a rolling row
  float window[W - 1]
              [Vec];  // the past when it is W-1: the slot may be overwritten before it is used

  __device__ __forceinline__ History(const ConvArguments& arguments, const Row& of,
                                     std::int64_t first_channel)
      : a(arguments), row(of), channel(first_channel) {
    const Problem& p = a.p;
    past = p.window_offsets.present() ? p.W - 1 : p.state.columns;
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
#pragma unroll
      for (int v = 0; v < Vec; ++v) window[j][v] = 0;
    }
    if (past == W - 1 && row.from_pool) {
      load_window<W, Vec>(a, row.read, channel, p.window_offset(row.row), window);
    }
  }

  __device__ __forceinline__ void at(std::int64_t i, float (&values)[Vec]) const {
    if (i >= past) {
      const core::TokenView& x = a.p.x;
      TokenBits<Io, Vec> bits;
      bits.load(static_cast<const Io*>(x.data) + x.offset(row.row, row.begin + i - past, channel));
      bits.unpack(values);
    } else if (past != W - 1 && row.from_pool) {
      load_column(a, row.read, channel, i, values);
    } else {
#pragma unroll
      for (int v = 0; v < Vec; ++v) {
        values[v] = window[0][v];
#pragma unroll
        for (int j = 1; j < W - 1; ++j) values[v] = i == j ? window[j][v] : values[v];
      }
    }
  }

  // Inputs [first, first + count) into the columns from 0 on. A column is read before the one that
  // it moves to is written.
  __device__ __forceinline__ void leave(std::int64_t slot, std::int64_t first,
                                        std::int64_t count) const {
    if (slot == core::kNullSlot) return;
    if constexpr (Vec > 1) {
      if (a.windows == Windows::kDense) {
        float values[Vec * (W - 1)];
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
          float column[Vec];
          at(first + j, column);
#pragma unroll
          for (int v = 0; v < Vec; ++v) values[v * (W - 1) + j] = column[v];
        }
        device::store_wide(a.p.state.data, a.p.state.dtype, a.p.state.offset(slot, channel, 0),
                           values);
        return;
      }
    }
    count = min(count, a.p.state.columns);
    for (std::int64_t j = 0; j < count; ++j) {
      float column[Vec];
      at(first + j, column);
      store_column(a, slot, channel, j, column);
    }
  }
};

// The window after each listed number of tokens, and the final one. What goes to the slot that the
// row reads comes last, because the columns of a rolling row are moved from there; of several such
// the last one overwrites the others whole.
template <class Io, int W, int Vec>
__device__ __forceinline__ void leave_prefill(const ConvArguments& a, const Row& row,
                                              const History<Io, W, Vec>& history) {
  const Problem& p = a.p;
  std::int64_t in_place = -1, before = -1;
  for (std::int64_t i = 0; a.checkpoint_offsets.present() && i < a.checkpoint_offsets.columns;
       ++i) {
    const std::int64_t tokens = a.checkpoint_offsets.at(row.row, i);
    if (tokens <= before || tokens > row.length) break;
    before = tokens;
    const std::int64_t slot = p.slots.checked(a.checkpoint_slots.at(row.row, i), p.state.slots);
    if (slot == row.read) {
      in_place = tokens;
    } else {
      history.leave(slot, tokens, history.past);
    }
  }
  if (row.write == row.read) {
    in_place = row.length;
  } else {
    history.leave(row.write, row.length, history.past);
  }
  if (in_place >= 0) history.leave(row.read, in_place, history.past);
}

template <class Io, int W, int Vec>
__device__ __forceinline__ void leave_update(const ConvArguments& a, const Row& row,
                                             const History<Io, W, Vec>& history) {
  const Problem& p = a.p;
  if (!p.window_offsets.present()) {
    std::int64_t tokens = row.length;
    if (a.commit_lengths.present()) {
      tokens = max(std::int64_t{0}, min(a.commit_lengths.at(row.row), row.length));
    }
    history.leave(row.write, tokens, history.past);
  } else if (row.length > 0) {
    history.leave(row.write, 1, history.past - 1 + row.length);
  } else if (row.write != core::kNullSlot && row.write != row.read) {
    for (std::int64_t j = 0; j < p.state.columns; ++j) {  // no tokens: the row as it was
      float column[Vec];
      load_column(a, row.read, history.channel, j, column);
      store_column(a, row.write, history.channel, j, column);
    }
  }
}

// Once a row and seldom: kept out of the kernel, whose registers it would take.
template <class Io, int W, int Vec>
__device__ __noinline__ void leave_windows(const ConvArguments& a, std::int64_t index,
                                           std::int64_t channel) {
  Row row;
  find_tokens(a, index, row);
  if (!find_slots(a, row)) return;
  const History<Io, W, Vec> history(a, row, channel);
  if (a.update) {
    leave_update(a, row, history);
  } else {
    leave_prefill(a, row, history);
  }
}

}  // namespace hyla::conv
