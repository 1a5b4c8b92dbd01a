#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/conv.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/conv_kernel.cpp"
#include "cpu/foreach_target.h"

#include "cpu/conv_block.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t kTokensTogether = 4;

template <int kWidth, int kTogether, bool kInside, class T>
void slide_lines(const ConvBlock& b, std::int64_t first, const T* x, std::int64_t x_stride, T* out,
                 std::int64_t out_stride, std::int64_t tokens) {
  for (std::int64_t c = first; c < b.count; c += kLanes) {
    slide<kWidth, kTogether, kInside>(b, c, b.count - c, x, x_stride, out, out_stride, tokens);
  }
}

// In place: the last inputs of kTokensTogether tokens, before their outputs take their place.
template <int kWidth, class T>
void keep_inputs(ConvBlock& b, const T* x, std::int64_t x_stride, float (*to)[kConvChannels]) {
  for (int j = 0; j + 1 < kWidth; ++j) {
    const T* line = x + (kTokensTogether - (kWidth - 1) + j) * x_stride;
    for (std::int64_t c = 0; c < b.count; c += kLanes) {
      store(load_some(line + c, b.count - c), to[j] + c);
    }
  }
}

// As convolve(), where out is x.
template <int kWidth, class T>
void convolve_in_place(const conv::Problem& p, std::int64_t row, ConvBlock& b) {
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  const std::int64_t stride = p.x.token_stride;
  alignas(64) float kept[2][kWidth - 1][kConvChannels];
  for (std::int64_t t = 0; t < length; t += kTokensTogether) {
    T* x = static_cast<T*>(p.out.data) + p.out.offset(row, begin + t, b.first);
    if (length - t < kTokensTogether) {
      slide_lines<kWidth, 1, false, T>(b, 0, x, stride, x, stride, length - t);
      return;
    }
    float(*next)[kConvChannels] = kept[t / kTokensTogether % 2];
    keep_inputs<kWidth>(b, x, stride, next);
    slide_lines<kWidth, kTokensTogether, false, T>(b, 0, x, stride, x, stride, kTokensTogether);
    for (int j = 0; j + 1 < kWidth; ++j) b.before[j] = next[j];
  }
}

// Whether the outputs of all tokens begin a cache line.
template <class T>
bool begins_lines(const T* out, std::int64_t stride) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  return reinterpret_cast<std::uintptr_t>(out) % 64 == 0 && stride % kLine == 0;
}

// Whole lines of a few tokens before the next tokens: memory is read and written in long runs.
template <int kWidth, class T>
void convolve(const conv::Problem& p, std::int64_t row, ConvBlock& b) {
  if (p.in_place) return convolve_in_place<kWidth, T>(p, row, b);
  const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
  const std::int64_t x_stride = p.x.token_stride, out_stride = p.out.token_stride;
  for (std::int64_t t = 0; t < length; t += kTokensTogether) {
    const std::int64_t tokens = std::min(kTokensTogether, length - t);
    const T* x = static_cast<const T*>(p.x.data) + p.x.offset(row, begin + t, b.first);
    T* out = static_cast<T*>(p.out.data) + p.out.offset(row, begin + t, b.first);
    std::int64_t done = 0;
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (kWidth == 4 && std::is_same_v<T, bfloat16>) {
      if (t > 0 && tokens == kTokensTogether && p.weight.dtype == DType::kBFloat16) {
        zip_weights(b);
        const auto slide = b.lines == ConvLines::kTwice ? slide_pairs<ConvLines::kTwice>
                           : b.lines == ConvLines::kStreamed && begins_lines(out, out_stride)
                               ? slide_pairs<ConvLines::kStreamed>
                               : slide_pairs<ConvLines::kOnce>;
        done = slide(b, x, x_stride, out, out_stride);
      }
    }
#elif HYLA_TARGET_HAS_WORDS
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (t > 0 && tokens == kTokensTogether) {
        split_weights(b, kWidth);
        done = slide_split<kWidth>(b, x, x_stride, out, out_stride);
      }
    }
#endif
    if (tokens < kTokensTogether) {
      (t > 0 ? slide_lines<kWidth, 1, true, T>
             : slide_lines<kWidth, 1, false, T>)(b, done, x, x_stride, out, out_stride, tokens);
    } else {
      (t > 0 ? slide_lines<kWidth, kTokensTogether, true, T>
             : slide_lines<kWidth, kTokensTogether, false, T>)(b, done, x, x_stride, out,
                                                               out_stride, tokens);
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

  float* past_line(std::int64_t i) const { return b.past + i * b.count; }

  // First of all: what is left in the pool may take the place of what was there.
  void load_past(bool from_pool) const {
    const std::int64_t count = past();
    const std::int64_t column = p.window_offset(row) + (p.W - 1) - count;
    const std::int64_t slot = p.slots.read_slot(row);
    if (from_pool) {
      load_columns(p.state.data, p.state.dtype, p.state.offset(slot, b.first, column),
                   p.state.channel_stride, p.state.column_stride, count, b.count, b.past, b.count);
    } else {
      std::fill_n(b.past, count * b.count, 0.0f);
    }
    for (std::int64_t j = 0; j + 1 < p.W; ++j) b.before[j] = past_line(count - (p.W - 1) + j);
  }

  // After the windows are left, which are inputs: out may take the place of x.
  void run() const {
    if (p.W == 4) return convolve_dtype<4>(p, row, b);
    if (p.W == 3) return convolve_dtype<3>(p, row, b);
    convolve_dtype<2>(p, row, b);
  }

  // Input i as floats: where it is, or read into `to`.
  const float* input(std::int64_t i, float* to) const {
    if (i < past()) return past_line(i);
    load_line(p.x.data, p.x.dtype, p.x.offset(row, p.sequences.begin(row) + i - past(), b.first), 1,
              b.count, to);
    return to;
  }

  // Inputs [first, last) into the columns from 0 on.
  void keep_columns(std::int64_t slot, std::int64_t first, std::int64_t last) const {
    if (slot == core::kNullSlot) return;
    const std::int64_t columns = last - first;
    if (columns == p.state.columns &&
        columns_are_dense(columns, p.state.channel_stride, p.state.column_stride)) {
      const float* lines[kMostColumns];
      for (std::int64_t i = 0; i < columns; ++i) lines[i] = input(first + i, b.inputs[i]);
      store_columns(lines, columns, b.count, p.state.data, p.state.dtype,
                    p.state.offset(slot, b.first, 0));
      return;
    }
    for (std::int64_t i = 0; i < columns; ++i) {
      store_line(input(first + i, b.inputs[0]), b.count, p.state.data, p.state.dtype,
                 p.state.offset(slot, b.first, i), p.state.channel_stride);
    }
  }

  void store_window(std::int64_t slot, std::int64_t tokens) const {
    keep_columns(slot, tokens, tokens + past());
  }

  // Without tokens no window begins at column 0: the row keeps its columns and its offset.
  void copy_row(std::int64_t from, std::int64_t to) const {
    if (to == core::kNullSlot || to == from) return;
    float* line = b.inputs[0];
    for (std::int64_t i = 0; i < p.state.columns; ++i) {
      load_line(p.state.data, p.state.dtype, p.state.offset(from, b.first, i),
                p.state.channel_stride, b.count, line);
      store_line(line, b.count, p.state.data, p.state.dtype, p.state.offset(to, b.first, i),
                 p.state.channel_stride);
    }
  }
};

inline void run_row(const conv::PrefillProblem& p, const ConvRow& r) {
  r.load_past(p.starts_from_pool(r.row));
  for (std::int64_t i = 0; i < p.checkpoint_count(r.row); ++i) {
    const std::int64_t slot = p.slots.checked(p.checkpoint_slots.at(r.row, i), p.state.slots);
    r.store_window(slot, p.checkpoint_offsets.at(r.row, i));
  }
  r.store_window(p.slots.write_slot(r.row), p.sequences.length(r.row));
  r.run();
}

// The usual step of a decoder.
inline bool rolls(const conv::UpdateProblem& p, const ConvRow& r) {
  return !p.window_offsets.present() && p.sequences.length(r.row) == 1 &&
         p.commit_length(r.row) == 1 && p.state.columns == p.W - 1 && p.state.dtype == p.x.dtype &&
         columns_are_dense(p.W - 1, p.state.channel_stride, p.state.column_stride) &&
         r.b.count % kLanes == 0;
}
template <class T>
void roll_row(const conv::UpdateProblem& p, const ConvRow& r) {
  const std::int64_t token = p.sequences.begin(r.row), slot = p.slots.write_slot(r.row);
  const T* x = static_cast<const T*>(p.x.data) + p.x.offset(r.row, token, r.b.first);
  T* out = static_cast<T*>(p.out.data) + p.out.offset(r.row, token, r.b.first);
  T* pool = static_cast<T*>(p.state.data);
  const T* from = pool + p.state.offset(p.slots.read_slot(r.row), r.b.first, 0);
  T* to = slot == core::kNullSlot ? nullptr : pool + p.state.offset(slot, r.b.first, 0);
  if (p.W == 4) {
    roll(r.b, x, out, from, to, std::make_integer_sequence<int, 3>{});
  } else {
    roll(r.b, x, out, from, to, std::make_integer_sequence<int, 2>{});
  }
}

inline void run_row(const conv::UpdateProblem& p, const ConvRow& r) {
  if (rolls(p, r)) {
    switch (p.x.dtype) {
      case DType::kBFloat16:
        return roll_row<bfloat16>(p, r);
      case DType::kFloat16:
        return roll_row<float16>(p, r);
      default:
        return roll_row<float>(p, r);
    }
  }
  r.load_past(true);
  const std::int64_t slot = p.slots.write_slot(r.row), length = p.sequences.length(r.row);
  if (!p.window_offsets.present()) {
    r.store_window(slot, p.commit_length(r.row));
  } else if (length == 0) {
    r.copy_row(p.slots.read_slot(r.row), slot);
  } else {
    r.keep_columns(slot, 1, r.past() + length);
  }
  r.run();
}

template <class Problem>
void run_conv(const Problem& p, std::int64_t width, Range units) {
  ConvBlock b;
  b.silu = p.activation == conv::Activation::kSilu;
  const std::int64_t tokens = p.sequences.tokens * (p.sequences.ragged() ? 1 : p.sequences.rows);
  const std::int64_t bytes = tokens * p.C * static_cast<std::int64_t>(size_of(p.out.dtype));
  if (drops_crowds()) b.lines = bytes > kCacheBytes ? ConvLines::kStreamed : ConvLines::kOnce;
  b.first = -1;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t row = unit % p.sequences.rows;
    const std::int64_t first = unit / p.sequences.rows * width;
    if (p.padding(row)) continue;
    if (first != b.first) {
      b.first = first;
      b.count = std::min(width, p.C - first);
      load_weights(p, b);
    }
    run_row(p, {p, row, b});
  }
  if (b.lines == ConvLines::kStreamed) flush_stream();
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
