#include <algorithm>
#include <cstring>

#include "cpu/conv.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/conv_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t kTokensTogether = 4;

// A block of channels: its weights, and what the row at hand had before the call.
struct ConvBlock {
  std::int64_t first = 0, count = 0;  // channels
  bool silu = false;
  alignas(64) float weight[4][kConvChannels];
  alignas(64) float bias[kConvChannels];
  alignas(64) float past[kConvColumns][kConvChannels];  // oldest first
  alignas(64) float recent[3][kConvChannels];           // the last W-1 inputs, oldest first
};

inline void load_weights(const conv::Problem& p, ConvBlock& b) {
  for (std::int64_t j = 0; j < p.W; ++j) {
    const std::int64_t offset = b.first * p.weight.channel_stride + j * p.weight.tap_stride;
    load_line(p.weight.data, p.weight.dtype, offset, p.weight.channel_stride, b.count, b.weight[j]);
  }
  if (p.bias.present()) {
    load_line(p.bias.data, p.bias.dtype, b.first * p.bias.stride, p.bias.stride, b.count, b.bias);
  } else {
    std::fill_n(b.bias, b.count, 0.0f);
  }
}

// One vector of channels over up to kTokensTogether tokens; the window slides in registers.
template <int kWidth, bool kWhole, class T>
HYLA_INLINE void slide(ConvBlock& b, std::int64_t channel, int n, const T* x, std::int64_t x_stride,
                       T* out, std::int64_t out_stride, std::int64_t tokens) {
  F weight[kWidth], window[kWidth];
#pragma GCC unroll 4
  for (int j = 0; j < kWidth; ++j) weight[j] = load(b.weight[j] + channel);
#pragma GCC unroll 4
  for (int j = 0; j + 1 < kWidth; ++j) window[j] = load(b.recent[j] + channel);
  const F bias = load(b.bias + channel);
  for (std::int64_t t = 0; t < tokens; ++t) {
    if constexpr (kWhole) {
      window[kWidth - 1] = load(x + t * x_stride + channel);
    } else {
      window[kWidth - 1] = load_n(x + t * x_stride + channel, n);
    }
    F y = bias;
#pragma GCC unroll 4
    for (int j = 0; j < kWidth; ++j) y = fma(weight[j], window[j], y);
    // silu(y) = y sigmoid(y), and 0 at -inf
    if (b.silu) y = mul(max(set(-3.4e38f), y), sigmoid(y));
    if constexpr (kWhole) {
      store(y, out + t * out_stride + channel);
    } else {
      store_n(y, out + t * out_stride + channel, n);
    }
#pragma GCC unroll 4
    for (int j = 0; j + 1 < kWidth; ++j) window[j] = window[j + 1];
  }
#pragma GCC unroll 4
  for (int j = 0; j + 1 < kWidth; ++j) store(window[j], b.recent[j] + channel);
}

// Whole lines of a few tokens before the next tokens: memory is read and written in long runs.
template <int kWidth, class T>
void convolve(const conv::Problem& p, std::int64_t row, ConvBlock& b) {
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  const std::int64_t whole = b.count / kLanes * kLanes;
  for (std::int64_t t = 0; t < length; t += kTokensTogether) {
    const std::int64_t tokens = std::min(kTokensTogether, length - t);
    const T* x = static_cast<const T*>(p.x.data) + p.x.offset(row, begin + t, b.first);
    T* out = static_cast<T*>(p.out.data) + p.out.offset(row, begin + t, b.first);
    for (std::int64_t c = 0; c < whole; c += kLanes) {
      slide<kWidth, true>(b, c, 0, x, p.x.token_stride, out, p.out.token_stride, tokens);
    }
    if (whole < b.count) {
      slide<kWidth, false>(b, whole, static_cast<int>(b.count - whole), x, p.x.token_stride, out,
                           p.out.token_stride, tokens);
    }
  }
}

template <int kWidth>
void convolve_dtype(const conv::Problem& p, std::int64_t row, ConvBlock& b) {
  switch (p.x.dtype) {
    case DType::kBFloat16:
      return convolve<kWidth, bfloat16>(p, row, b);
    case DType::kFloat16:
      return convolve<kWidth, float16>(p, row, b);
    default:
      return convolve<kWidth, float>(p, row, b);
  }
}

// One row of a block. Inputs are numbered from the oldest that the call knows: `past` from the
// pool, then the row's tokens.
struct ConvRow {
  const conv::Problem& p;
  std::int64_t row;
  ConvBlock& b;

  // A rolling row is moved whole; at an offset only the window matters.
  std::int64_t past() const {
    return p.window_offsets.present() || !p.state.present() ? p.W - 1 : p.state.columns;
  }

  void run(bool from_pool) const {
    const std::int64_t count = past();
    const std::int64_t column = p.window_offset(row) + (p.W - 1) - count;
    const std::int64_t slot = p.slots.read_slot(row);
    for (std::int64_t i = 0; i < count; ++i) {
      if (from_pool) {
        load_line(p.state.data, p.state.dtype, p.state.offset(slot, b.first, column + i),
                  p.state.channel_stride, b.count, b.past[i]);
      } else {
        std::fill_n(b.past[i], b.count, 0.0f);
      }
    }
    for (std::int64_t j = 0; j + 1 < p.W; ++j) {
      std::copy_n(b.past[count - (p.W - 1) + j], b.count, b.recent[j]);
    }
    if (p.W == 4) return convolve_dtype<4>(p, row, b);
    if (p.W == 3) return convolve_dtype<3>(p, row, b);
    convolve_dtype<2>(p, row, b);
  }

  // Inputs [first, last) into the columns from 0 on.
  void store_columns(std::int64_t slot, std::int64_t first, std::int64_t last) const {
    if (slot == core::kNullSlot) return;
    alignas(64) float inputs[kConvChannels];
    const std::int64_t count = past(), begin = p.sequences.begin(row);
    for (std::int64_t i = first; i < last; ++i) {
      const float* line = inputs;
      if (i < count) {
        line = b.past[i];
      } else {
        load_line(p.x.data, p.x.dtype, p.x.offset(row, begin + i - count, b.first), 1, b.count,
                  inputs);
      }
      store_line(line, b.count, p.state.data, p.state.dtype,
                 p.state.offset(slot, b.first, i - first), p.state.channel_stride);
    }
  }

  void store_window(std::int64_t slot, std::int64_t tokens) const {
    store_columns(slot, tokens, tokens + past());
  }

  // Without tokens no window begins at column 0: the row keeps its columns and its offset.
  void copy_row(std::int64_t from, std::int64_t to) const {
    if (to == core::kNullSlot || to == from) return;
    alignas(64) float line[kConvChannels];
    for (std::int64_t i = 0; i < p.state.columns; ++i) {
      load_line(p.state.data, p.state.dtype, p.state.offset(from, b.first, i),
                p.state.channel_stride, b.count, line);
      store_line(line, b.count, p.state.data, p.state.dtype, p.state.offset(to, b.first, i),
                 p.state.channel_stride);
    }
  }
};

inline void run_row(const conv::PrefillProblem& p, const ConvRow& r) {
  r.run(p.starts_from_pool(r.row));
  for (std::int64_t i = 0; i < p.checkpoint_count(r.row); ++i) {
    const std::int64_t slot = p.slots.checked(p.checkpoint_slots.at(r.row, i), p.state.slots);
    r.store_window(slot, p.checkpoint_offsets.at(r.row, i));
  }
  r.store_window(p.slots.write_slot(r.row), p.sequences.length(r.row));
}

inline void run_row(const conv::UpdateProblem& p, const ConvRow& r) {
  r.run(true);
  const std::int64_t slot = p.slots.write_slot(r.row), length = p.sequences.length(r.row);
  if (!p.window_offsets.present()) {
    r.store_window(slot, p.commit_length(r.row));
  } else if (length == 0) {
    r.copy_row(p.slots.read_slot(r.row), slot);
  } else {
    r.store_columns(slot, 1, r.past() + length);
  }
}

template <class Problem>
void run_conv(const Problem& p, Range units) {
  ConvBlock b;
  b.silu = p.activation == conv::Activation::kSilu;
  b.first = -1;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t row = unit % p.sequences.rows;
    const std::int64_t first = unit / p.sequences.rows * kConvChannels;
    if (p.padding(row)) continue;
    if (first != b.first) {
      b.first = first;
      b.count = std::min(kConvChannels, p.C - first);
      load_weights(p, b);
    }
    run_row(p, {p, row, b});
  }
}

extern const ConvKernels kConvKernels;
const ConvKernels kConvKernels = {run_conv<conv::PrefillProblem>, run_conv<conv::UpdateProblem>};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const ConvKernels& conv_kernels(Target target) { return HYLA_TARGET_SELECT(kConvKernels); }
}  // namespace hyla::cpu
#endif
