// A block of channels of the convolution. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_CONV_BLOCK_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_CONV_BLOCK_H_
#undef HYLA_CPU_CONV_BLOCK_H_
#else
#define HYLA_CPU_CONV_BLOCK_H_
#endif

#include <type_traits>

#include "cpu/columns.h"
#include "cpu/quick_sigmoid.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// How slide_pairs goes to memory: asking for lines twice, or once where requests are lost in crowds;
// there, much of it is written past the caches, as then nobody asks for what is overwritten.
enum class ConvLines { kTwice, kOnce, kStreamed };

// Its weights, and what the row at hand had before the call.
struct ConvBlock {
  std::int64_t first = 0, count = 0;  // channels
  bool silu = false, ordered = false;
  ConvLines lines = ConvLines::kTwice;
  const float* before[3];  // the last W-1 inputs, oldest first
  alignas(64) float weight[4][kConvChannels];
  alignas(64) float bias[kConvChannels];
  alignas(64) float past[kConvPast];           // [columns, count], oldest first
  alignas(64) float inputs[4][kConvChannels];  // on their way to the pool
  // In the order in which slide_pairs or slide_split takes the channels.
  alignas(64) float ordered_bias[kConvChannels];
  alignas(64) float ordered_weight[4][kConvChannels];
};

inline void load_weights(const conv::Problem& p, ConvBlock& b) {
  load_columns(p.weight.data, p.weight.dtype, b.first * p.weight.channel_stride,
               p.weight.channel_stride, p.weight.tap_stride, p.W, b.count, b.weight[0],
               kConvChannels);
  if (p.bias.present()) {
    load_line(p.bias.data, p.bias.dtype, b.first * p.bias.stride, p.bias.stride, b.count, b.bias);
  } else {
    std::fill_n(b.bias, b.count, 0.0f);
  }
  b.ordered = false;
}

// Products of pairs add the second of each first. All ways of a dtype add alike: a sequence keeps
// its bits however it is cut into calls.
template <class T>
constexpr int tap_of(int i, int width) {
  return HYLA_TARGET_HAS_PAIRS && std::is_same_v<T, bfloat16> && width == 4 ? i ^ 1 : i;
}

template <class T, int kCount>
HYLA_INLINE void activate(F (&y)[kCount]) {
  if constexpr (sizeof(T) == 2) {
    quick_silus(y);
  } else {
    // silu(y) = y sigmoid(y), and 0 at -inf
    for (int i = 0; i < kCount; ++i) y[i] = mul(max(set(-3.4e38f), y[i]), sigmoid(y[i]));
  }
}

// One vector of channels over `tokens` tokens, kTogether at a time; the window slides in registers.
// kInside: the inputs before them are in x, otherwise in b.before. `lanes`: how many there are.
template <int kWidth, int kTogether, bool kInside, class T>
HYLA_INLINE void slide(const ConvBlock& b, std::int64_t channel, std::int64_t lanes, const T* x,
                       std::int64_t x_stride, T* out, std::int64_t out_stride,
                       std::int64_t tokens) {
  F weight[kWidth], window[kWidth];
#pragma GCC unroll 4
  for (int j = 0; j < kWidth; ++j) weight[j] = load(b.weight[j] + channel);
#pragma GCC unroll 4
  for (int j = 0; j + 1 < kWidth; ++j) {
    window[j] = kInside ? load_some(x + (j + 1 - kWidth) * x_stride + channel, lanes)
                        : load(b.before[j] + channel);
  }
  const F bias = load(b.bias + channel);
  for (std::int64_t t = 0; t < tokens; t += kTogether) {
    F y[kTogether];
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      window[kWidth - 1] = load_some(x + (t + i) * x_stride + channel, lanes);
      y[i] = bias;
#pragma GCC unroll 4
      for (int n = 0; n < kWidth; ++n) {
        const int j = tap_of<T>(n, kWidth);
        y[i] = fma(weight[j], window[j], y[i]);
      }
#pragma GCC unroll 4
      for (int j = 0; j + 1 < kWidth; ++j) window[j] = window[j + 1];
    }
    if (b.silu) activate<T>(y);
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      store_some(y[i], out + (t + i) * out_stride + channel, lanes);
    }
  }
}

// One token whose window rolls through a dense pool of W-1 columns and never leaves the registers.
// `to` null: the pool keeps what it has. Whole vectors of channels only.
template <class T, int... kColumn>
void roll(const ConvBlock& b, const T* x, T* out, const T* from, T* to,
          std::integer_sequence<int, kColumn...>) {
  constexpr int kColumns = sizeof...(kColumn);
  for (std::int64_t c = 0; c < b.count; c += kLanes) {
    const F rows[] = {load(from + c * kColumns + kColumn * kLanes)...};
    const F window[] = {column_of<kColumns, kColumn>(rows, rows[0])..., load(x + c)};
    F y[] = {load(b.bias + c)};
    const F taps[] = {load(b.weight[kColumn] + c)..., load(b.weight[kColumns] + c)};
#pragma GCC unroll 4
    for (int i = 0; i <= kColumns; ++i) {
      const int j = tap_of<T>(i, kColumns + 1);
      y[0] = fma(taps[j], window[j], y[0]);
    }
    if (b.silu) activate<T>(y);
    store(y[0], out + c);
    if (to == nullptr) continue;
    (store(row_of<kColumns, kColumn>(window + 1, window[1]), to + c * kColumns + kColumn * kLanes),
     ...);
  }
}

#if HYLA_TARGET_HAS_PAIRS
// Channels of bfloat16 as zip_lower and zip_upper order them: pairs of neighbouring inputs meet
// pairs of weights.
constexpr std::int64_t kZipped = 2 * kLanes;

inline void zip_weights(ConvBlock& b) {
  if (b.ordered) return;
  b.ordered = true;
  for (std::int64_t c = 0; c + kZipped <= b.count; c += kZipped) {
    for (int half = 0; half < 2; ++half) {
      for (int quad = 0; quad < 4; ++quad) {
        const std::int64_t from = c + quad * 8 + half * 4, to = c + half * kLanes + quad * 4;
        std::copy_n(b.bias + from, 4, b.ordered_bias + to);
      }
    }
    for (int pair = 0; pair < 2; ++pair) {
      alignas(64) float pairs[kZipped];
      for (int i = 0; i < 2; ++i) {
        const std::int64_t at = c + i * kLanes;
        store_pairs(pack_pairs(load(b.weight[2 * pair] + at), load(b.weight[2 * pair + 1] + at)),
                    pairs + i * kLanes);
      }
      for (int half = 0; half < 2; ++half) {
        for (int quad = 0; quad < 4; ++quad) {
          std::copy_n(pairs + quad * 8 + half * 4, 4,
                      b.ordered_weight[pair] + c + half * kLanes + quad * 4);
        }
      }
    }
  }
}

template <bool kStreamed>
HYLA_INLINE void leave_zipped(F lower, F upper, bfloat16* to) {
  if constexpr (kStreamed) return stream_zipped(lower, upper, to);
  store_zipped(lower, upper, to);
}

// SiLUs of two tokens on their way to memory: they are divided while the next ones are made, which
// keeps the divider busy.
template <bool kStreamed>
struct SilusBehind {
  F x[4], y[4];
  bfloat16 *first, *second;

  // `nowhere`: room for two tokens.
  explicit HYLA_INLINE SilusBehind(bfloat16* nowhere) : first(nowhere), second(nowhere + kZipped) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = zero(), y[i] = set(1.0f);
  }
  HYLA_INLINE void divide() {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = div(x[i], y[i]);
  }
  HYLA_INLINE void leave() const {
    leave_zipped<kStreamed>(x[0], x[1], first);
    leave_zipped<kStreamed>(x[2], x[3], second);
  }
  HYLA_INLINE void follow(F (&next)[4], bfloat16* to, std::int64_t stride) {
    F below[4];
    divide();
    quick_denominators(next, below);
    leave();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = next[i], y[i] = below[i];
    first = to, second = to + stride;
  }
};

// Four taps over four tokens that have three others before them in x. Returns the number of
// channels done.
template <ConvLines kLines>
inline std::int64_t slide_pairs(const ConvBlock& b, const bfloat16* x, std::int64_t x_stride,
                                bfloat16* out, std::int64_t out_stride) {
  alignas(64) bfloat16 nowhere[2 * kZipped];
  constexpr bool kStreamed = kLines == ConvLines::kStreamed;
  SilusBehind<kStreamed> behind(nowhere);
  std::int64_t c = 0;
  for (; c + kZipped <= b.count; c += kZipped) {
    // The next four tokens: no prefetcher of the hardware follows lines that are so far apart.
    const bfloat16* next = x + 4 * x_stride + c;
    bfloat16* next_out = out + 4 * out_stride + c;
    if constexpr (kLines != ConvLines::kTwice) {  // then ahead of loads that may wait
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        __builtin_prefetch(next + u * x_stride, 0, 2);
        if (!kStreamed) __builtin_prefetch(next_out + u * out_stride, 1, 2);
      }
    }
    P weight[2][2];  // [taps][lower, upper]
    F bias[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      weight[0][half] = load_pairs(b.ordered_weight[0] + c + half * kLanes);
      weight[1][half] = load_pairs(b.ordered_weight[1] + c + half * kLanes);
      bias[half] = load(b.ordered_bias + c + half * kLanes);
    }
    P line[7], lower[6], upper[6];
#pragma GCC unroll 8
    for (int t = 0; t < 7; ++t) line[t] = load_pairs(x + (t - 3) * x_stride + c);
#pragma GCC unroll 8
    for (int t = 0; t < 6; ++t) {
      lower[t] = zip_lower(line[t], line[t + 1]);
      upper[t] = zip_upper(line[t], line[t + 1]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < 4; t += 2) {
      F y[4];
#pragma GCC unroll 4
      for (int i = 0; i < 2; ++i) {
        const int u = t + i;
        if constexpr (kLines == ConvLines::kTwice) {
          __builtin_prefetch(next + u * x_stride, 0, 2);
          __builtin_prefetch(next_out + u * out_stride, 1, 2);
          // Once more, shortly before they are needed: of those requests some are lost.
          __builtin_prefetch(x + u * x_stride + c + 4 * kZipped, 0, 3);
          __builtin_prefetch(out + u * out_stride + c + 4 * kZipped, 1, 3);
        }
        y[2 * i] =
            dot_pairs(dot_pairs(bias[0], lower[u], weight[0][0]), lower[u + 2], weight[1][0]);
        y[2 * i + 1] =
            dot_pairs(dot_pairs(bias[1], upper[u], weight[0][1]), upper[u + 2], weight[1][1]);
      }
      bfloat16* to = out + t * out_stride + c;
      if (b.silu) {
        behind.follow(y, to, out_stride);
      } else {
        leave_zipped<kStreamed>(y[0], y[1], to);
        leave_zipped<kStreamed>(y[2], y[3], to + out_stride);
      }
    }
  }
  if (b.silu) {
    behind.divide();
    behind.leave();
  }
  return c;
}
#elif HYLA_TARGET_HAS_WORDS
// Channels of bfloat16 as even and odd ones, two vectors of floats.
constexpr std::int64_t kBoth = 2 * kLanes;

inline void split_weights(ConvBlock& b, int width) {
  if (b.ordered) return;
  b.ordered = true;
  const auto split = [&](const float* from, float* to) {
    for (std::int64_t c = 0; c + kBoth <= b.count; c += kBoth) {
      F even = load(from + c), odd = load(from + c + kLanes);
      split_lanes(even, odd);
      store(even, to + c);
      store(odd, to + c + kLanes);
    }
  };
  split(b.bias, b.ordered_bias);
  for (int j = 0; j < width; ++j) split(b.weight[j], b.ordered_weight[j]);
}

// slide() of four tokens that have others before them in x. Returns the number of channels done.
template <int kWidth>
std::int64_t slide_split(const ConvBlock& b, const bfloat16* x, std::int64_t x_stride,
                         bfloat16* out, std::int64_t out_stride) {
  constexpr int kTokens = 4, kLines = kTokens + kWidth - 1;
  std::int64_t c = 0;
  for (; c + kBoth <= b.count; c += kBoth) {
    F y[2][kTokens];  // [even, odd]
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      F window[kLines];
#pragma GCC unroll 8
      for (int t = 0; t < kLines; ++t) {
        const Words line = load_words(x + (t + 1 - kWidth) * x_stride + c);
        window[t] = half == 0 ? even_words(line) : odd_words(line);
      }
      const float* weight = b.ordered_weight[0] + c + half * kLanes;
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) y[half][t] = load(b.ordered_bias + c + half * kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < kWidth; ++j) {
        const F tap = load(weight + j * kConvChannels);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) y[half][t] = fma(tap, window[t + j], y[half][t]);
      }
      if (b.silu) activate<bfloat16>(y[half]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      // The next four tokens: no prefetcher of the hardware follows lines that are so far apart.
      __builtin_prefetch(x + (t + kTokens) * x_stride + c, 0, 2);
      __builtin_prefetch(out + (t + kTokens) * out_stride + c, 1, 2);
      store_words(join_words_to_even(y[0][t], y[1][t]), out + t * out_stride + c);
    }
  }
  return c;
}
#endif

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_CONV_BLOCK_H_
