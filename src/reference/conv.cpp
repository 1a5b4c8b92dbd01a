#include "reference/conv.h"

#include <vector>

#include "reference/scalar.h"

namespace hyla::reference {
namespace {

// All inputs of one channel of one row that the call knows, oldest first: `past` from before the
// call, then its tokens. The window after n tokens is the last W-1 of the first past + n.
struct Inputs {
  std::vector<double> values;
  std::int64_t past = 0;

  double at(std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
};

// A rolling row is moved whole; at an offset only the window matters.
std::int64_t columns_kept(const conv::Problem& p) {
  return p.window_offsets.present() || !p.state.present() ? p.W - 1 : p.state.columns;
}

Inputs gather(const conv::Problem& p, std::int64_t row, std::int64_t channel, bool from_pool) {
  Inputs inputs;
  inputs.past = columns_kept(p);
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  inputs.values.assign(static_cast<std::size_t>(inputs.past + length), 0.0);
  const std::int64_t slot = p.slots.read_slot(row);
  const std::int64_t first = p.window_offset(row) + (p.W - 1) - inputs.past;
  for (std::int64_t i = 0; i < inputs.past && from_pool; ++i) {
    inputs.values[static_cast<std::size_t>(i)] =
        load(p.state.data, p.state.dtype, p.state.offset(slot, channel, first + i));
  }
  for (std::int64_t t = 0; t < length; ++t) {
    inputs.values[static_cast<std::size_t>(inputs.past + t)] = load(p.x, row, begin + t, channel);
  }
  return inputs;
}

void convolve(const conv::Problem& p, std::int64_t row, std::int64_t channel,
              const Inputs& inputs) {
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  for (std::int64_t t = 0; t < length; ++t) {
    double y = p.bias.present() ? load(p.bias, channel) : 0.0;
    for (std::int64_t j = 0; j < p.W; ++j) {
      const double weight = load(p.weight.data, p.weight.dtype,
                                 channel * p.weight.channel_stride + j * p.weight.tap_stride);
      y += weight * inputs.at(inputs.past + t - (p.W - 1) + j);
    }
    if (p.activation == conv::Activation::kSilu) y = silu(y);
    store(p.out.data, p.out.dtype, p.out.offset(row, begin + t, channel), y);
  }
}

// Inputs [first, last) into the columns from 0 on.
void store_columns(const conv::WindowPool& pool, std::int64_t slot, std::int64_t channel,
                   const Inputs& inputs, std::int64_t first, std::int64_t last) {
  if (slot == core::kNullSlot) return;
  for (std::int64_t i = first; i < last; ++i) {
    store(pool.data, pool.dtype, pool.offset(slot, channel, i - first), inputs.at(i));
  }
}

void store_window(const conv::Problem& p, std::int64_t slot, std::int64_t channel,
                  const Inputs& inputs, std::int64_t tokens) {
  store_columns(p.state, slot, channel, inputs, tokens, tokens + inputs.past);
}

// Without tokens no window begins at column 0: the row keeps its columns and its offset.
void copy_row(const conv::Problem& p, std::int64_t from, std::int64_t to, std::int64_t channel) {
  if (to == core::kNullSlot) return;
  for (std::int64_t i = 0; i < p.state.columns; ++i) {
    store(p.state.data, p.state.dtype, p.state.offset(to, channel, i),
          load(p.state.data, p.state.dtype, p.state.offset(from, channel, i)));
  }
}

template <class Body>
void for_each_channel(const conv::Problem& p, Body&& body) {
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
    if (p.padding(row)) continue;
    for (std::int64_t channel = 0; channel < p.C; ++channel) body(row, channel);
  }
}

}  // namespace

void conv_prefill(const conv::PrefillProblem& p, const Workspace&, const Context&) {
  for_each_channel(p, [&](std::int64_t row, std::int64_t channel) {
    const Inputs inputs = gather(p, row, channel, p.starts_from_pool(row));
    convolve(p, row, channel, inputs);
    for (std::int64_t i = 0; i < p.checkpoint_count(row); ++i) {
      const std::int64_t slot = p.slots.checked(p.checkpoint_slots.at(row, i), p.state.slots);
      store_window(p, slot, channel, inputs, p.checkpoint_offsets.at(row, i));
    }
    store_window(p, p.slots.write_slot(row), channel, inputs, p.sequences.length(row));
  });
}

void conv_update(const conv::UpdateProblem& p, const Workspace&, const Context&) {
  for_each_channel(p, [&](std::int64_t row, std::int64_t channel) {
    const Inputs inputs = gather(p, row, channel, true);
    convolve(p, row, channel, inputs);
    const std::int64_t slot = p.slots.write_slot(row), length = p.sequences.length(row);
    if (!p.window_offsets.present()) {
      store_window(p, slot, channel, inputs, p.commit_length(row));
    } else if (length == 0) {
      copy_row(p, p.slots.read_slot(row), slot, channel);
    } else {
      store_columns(p.state, slot, channel, inputs, 1, inputs.past + length);
    }
  });
}

}  // namespace hyla::reference
