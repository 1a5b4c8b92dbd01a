// How lines of a state are read as floats and written, two vectors at a time. Compiled for each
// target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_STATE_LINES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_STATE_LINES_H_
#undef HYLA_CPU_GDN_STATE_LINES_H_
#else
#define HYLA_CPU_GDN_STATE_LINES_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Elements in their order. `n`: of both vectors, the others are zero.
template <class S>
struct LineOf {
  static constexpr bool kInTurn = std::is_same_v<S, float>;  // TwoAtOnce takes them
  // Rows, when it does: what is asked for, and what is where that is done twice, see Fetch.
  static constexpr std::int64_t kAhead = 16, kSooner = 12, kLater = 20;
  static HYLA_INLINE bool asked_far(const S*) { return true; }
  static constexpr bool kArranged = false;  // not in their order: what they meet goes by arrange()
  static HYLA_INLINE void load_two(const S* from, F& a, F& b) {
    a = load(from);
    b = load(from + kLanes);
  }
  static HYLA_INLINE void store_two(F a, F b, S* to) {
    store(a, to);
    store(b, to + kLanes);
  }
  static HYLA_INLINE void load_some_two(const S* from, std::int64_t n, F& a, F& b) {
    a = load_some(from, n);
    b = n > kLanes ? load_some(from + kLanes, n - kLanes) : zero();
  }
  static HYLA_INLINE void store_some_two(F a, F b, S* to, std::int64_t n) {
    store_some(a, to, n);
    if (n > kLanes) store_some(b, to + kLanes, n - kLanes);
  }
  static HYLA_INLINE void arrange(F&, F&) {}
  static HYLA_INLINE void restore(F&, F&) {}
  static HYLA_INLINE F clean(F x) { return x; }
  static HYLA_INLINE float clean(float x) { return x; }
  static HYLA_INLINE void clean_four(float*) {}
};

#if HYLA_TARGET_HAS_WORDS
// Even and odd elements, without instructions for bfloat16, which are slow on some processors. NaN
// comes out where it goes in clean: its bits must not overflow when a sum rounds them.
template <>
struct LineOf<bfloat16> {
  static constexpr bool kInTurn = true, kArranged = true;
  static constexpr std::int64_t kAhead = 24, kSooner = 24, kLater = 40;
  // Not the last lines of a page: the hardware asks for them itself once it has seen the others, and
  // has more requests under way than a core's own.
  static HYLA_INLINE bool asked_far(const bfloat16* row) {
    return reinterpret_cast<std::uintptr_t>(row) % 4096 < 3072;
  }
  static HYLA_INLINE void load_two(const bfloat16* from, F& even, F& odd) {
    split_words(load_words(from), even, odd);
  }
  static HYLA_INLINE void store_two(F even, F odd, bfloat16* to) {
    store_words(join_words(even, odd), to);
  }
  static HYLA_INLINE void load_some_two(const bfloat16* from, std::int64_t n, F& even, F& odd) {
    split_words(load_some_words(from, n), even, odd);
  }
  static HYLA_INLINE void store_some_two(F even, F odd, bfloat16* to, std::int64_t n) {
    store_some_words(join_words(even, odd), to, n);
  }
  static HYLA_INLINE void arrange(F& a, F& b) { split_lanes(a, b); }
  static HYLA_INLINE void restore(F& a, F& b) { zip_lanes(a, b); }
  static HYLA_INLINE F clean(F x) { return clean_nan(x); }
  static HYLA_INLINE float clean(float x) {
    return x == x ? x : std::numeric_limits<float>::quiet_NaN();
  }
  static HYLA_INLINE void clean_four(float* x) {
    const float sum = (x[0] + x[1]) + (x[2] + x[3]);  // NaN where one of them is
    if (sum == sum) return;
    for (int j = 0; j < 4; ++j) x[j] = clean(x[j]);
  }
};
#endif

// change(a, b) of the floats of several tokens, `width` of each rounded up to two vectors. What is
// past them is read and written, too.
template <class Change>
HYLA_INLINE void change_floats(float (*x)[kMaxDim], std::int64_t tokens, std::int64_t width,
                               Change change) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < width; i += 2 * kLanes) {
      F a, b;
      LineOf<float>::load_two(x[t] + i, a, b);
      change(a, b);
      LineOf<float>::store_two(a, b, x[t] + i);
    }
  }
}

// They go in the order of S, and back.
template <class S>
HYLA_INLINE void arrange_floats(float (*x)[kMaxDim], std::int64_t tokens, std::int64_t width) {
  if (LineOf<S>::kArranged) change_floats(x, tokens, width, LineOf<S>::arrange);
}
template <class S>
HYLA_INLINE void restore_floats(float (*x)[kMaxDim], std::int64_t tokens, std::int64_t width) {
  if (LineOf<S>::kArranged) change_floats(x, tokens, width, LineOf<S>::restore);
}

template <class S>
HYLA_INLINE void clean_floats(float (*x)[kMaxDim], std::int64_t tokens, std::int64_t width) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < width; i += kLanes) {
      store(LineOf<S>::clean(load(x[t] + i)), x[t] + i);
    }
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_STATE_LINES_H_
