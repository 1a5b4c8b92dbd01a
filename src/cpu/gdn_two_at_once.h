// One token's step over rows of 128 keys, from a pool to a pool: while four rows are updated, the
// next four meet k and q. Neither waits for the other, and reading, arithmetic and writing come in
// an even mix. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_TWO_AT_ONCE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TWO_AT_ONCE_H_
#undef HYLA_CPU_GDN_TWO_AT_ONCE_H_
#else
#define HYLA_CPU_GDN_TWO_AT_ONCE_H_
#endif

#include "cpu/gdn_state_lines.h"
#include "cpu/gdn_step.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Rows ahead come into the second cache, or into the first one; or, out of memory, those of the next
// head into the second and what is near into the first; or what is near into the second, and nearer
// into the first.
enum class Fetch { kSecond, kFirst, kBoth, kTwice };

constexpr std::int64_t kRowsInTurn = 4;

// Compilers that see through it keep a register, or memory, for each line of each row.
template <class S>
HYLA_INLINE void advance(S*& at, std::int64_t stride) {
  at += stride;
  asm("" : "+r"(at));
}

// What a turn works on: rows that are updated, and those after them, which meet k and q. `fetched`
// are to be asked for, and so are those `far` away.
template <class S>
struct TurnOfRows {
  const S *row, *later, *fetched, *far;
  S* to;
  std::int64_t stride;
};
template <Fetch kFetch, class S>
HYLA_INLINE bool asks_far(const S* row) {
  return kFetch == Fetch::kTwice || (kFetch == Fetch::kBoth && LineOf<S>::asked_far(row));
}

// k and q stay in registers: row after row.
template <int kVectors>
struct KeysInRegisters {
  F k[kVectors], q[kVectors];

  template <class S>
  HYLA_INLINE void load_keys(const Token& t) {
    using Line = LineOf<S>;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      k[i] = load(t.k + i * kLanes);
      q[i] = load(t.q + i * kLanes);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i += 2) {
      Line::arrange(k[i], k[i + 1]);
      Line::arrange(q[i], q[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      k[i] = Line::clean(k[i]);
      q[i] = Line::clean(q[i]);
    }
  }

  // `kept`: [rows][], what was converted when it met k and q, so that it is not converted again.
  template <class S, class Kept>
  HYLA_INLINE void meet(const S* from, std::int64_t stride, Kept& kept, F (&ak)[kRowsInTurn],
                        F (&aq)[kRowsInTurn]) const {
#pragma GCC unroll 4
    for (int j = 0; j < kRowsInTurn; ++j) dot(from + j * stride, kept[j], ak[j], aq[j]);
  }

  template <Fetch kFetch, bool kWritten, class S, class Kept>
  HYLA_INLINE void turn(TurnOfRows<S> at, F alpha, const float* delta, const Kept& kept,
                        Kept& kept_later, F (&ak)[kRowsInTurn], F (&aq)[kRowsInTurn]) const {
#pragma GCC unroll 4
    for (int j = 0; j < kRowsInTurn; ++j) {
      dot(at.later, kept_later[j], ak[j], aq[j]);
      update<kFetch, kWritten>(alpha, set(delta[j]), at.row, kept[j], at.to, at.fetched);
      advance(at.later, at.stride);
      advance(at.fetched, at.stride);
      const S* far_row = at.far + j * at.stride;
      if (asks_far<kFetch>(far_row)) prefetch<kVectors * kLanes>(far_row);
      advance(at.row, at.stride);
      if (kWritten) advance(at.to, at.stride);
    }
  }

 private:
  template <Fetch kFetch, bool kWritten, class S>
  HYLA_INLINE void update(F alpha, F delta, const S* from, const float* kept, S* to,
                          const S* fetched) const {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i += 2) {
      prefetch<2 * kLanes, kFetch != Fetch::kSecond>(fetched + i * kLanes);
      if (!kWritten) continue;
      F x, y;
      if constexpr (LineOf<S>::kArranged) {
        LineOf<float>::load_two(kept + i * kLanes, x, y);
      } else {
        LineOf<S>::load_two(from + i * kLanes, x, y);
      }
      LineOf<S>::store_two(fma(k[i], delta, mul(alpha, x)), fma(k[i + 1], delta, mul(alpha, y)),
                           to + i * kLanes);
    }
  }

  template <class S>
  HYLA_INLINE void dot(const S* line, float* kept, F& ak, F& aq) const {
    ak = aq = zero();
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i += 2) {
      F x, y;
      LineOf<S>::load_two(line + i * kLanes, x, y);
      if (LineOf<S>::kArranged) LineOf<float>::store_two(x, y, kept + i * kLanes);
      ak = fma(k[i], x, ak);
      aq = fma(q[i], x, aq);
      ak = fma(k[i + 1], y, ak);
      aq = fma(q[i + 1], y, aq);
    }
  }
};

// There are registers for the sums of four rows: two vectors of all of them, then the next two.
template <int kVectors>
struct KeysInMemory {
  alignas(64) float k[kVectors * kLanes], q[kVectors * kLanes];

  template <class S>
  HYLA_INLINE void load_keys(const Token& t) {
    for (int i = 0; i < kVectors; i += 2) {
      arrange<S>(t.k + i * kLanes, k + i * kLanes);
      arrange<S>(t.q + i * kLanes, q + i * kLanes);
    }
  }

  template <class S, class Kept>
  HYLA_INLINE void meet(const S* from, std::int64_t stride, Kept& kept, F (&ak)[kRowsInTurn],
                        F (&aq)[kRowsInTurn]) const {
    clear(ak, aq);
    for (int i = 0; i < kVectors; i += 2) add_products(i, from, stride, kept, ak, aq);
  }

  template <Fetch kFetch, bool kWritten, class S, class Kept>
  HYLA_INLINE void turn(const TurnOfRows<S>& at, F alpha, const float* delta, const Kept& kept,
                        Kept& kept_later, F (&ak)[kRowsInTurn], F (&aq)[kRowsInTurn]) const {
    clear(ak, aq);
    for (int i = 0; i < kVectors; i += 2) {
      add_products(i, at.later, at.stride, kept_later, ak, aq);
      if (i * kLanes * static_cast<int>(sizeof(S)) % 64 == 0) {
#pragma GCC unroll 4
        for (int j = 0; j < kRowsInTurn; ++j) {
          const S* fetched = at.fetched + j * at.stride + i * kLanes;
          __builtin_prefetch(fetched, 0, kFetch != Fetch::kSecond ? 3 : 2);
          const S* far_line = at.far + j * at.stride + i * kLanes;
          if (asks_far<kFetch>(far_line)) __builtin_prefetch(far_line, 0, 2);
        }
      }
      if (!kWritten) continue;
      F k0, k1;
      LineOf<float>::load_two(k + i * kLanes, k0, k1);
#pragma GCC unroll 4
      for (int j = 0; j < kRowsInTurn; ++j) {
        F x, y;
        if constexpr (LineOf<S>::kArranged) {
          LineOf<float>::load_two(kept[j] + i * kLanes, x, y);
        } else {
          LineOf<S>::load_two(at.row + j * at.stride + i * kLanes, x, y);
        }
        const F d = set(delta[j]);
        LineOf<S>::store_two(fma(k0, d, mul(alpha, x)), fma(k1, d, mul(alpha, y)),
                             at.to + j * at.stride + i * kLanes);
      }
    }
  }

 private:
  template <class S>
  static HYLA_INLINE void arrange(const float* from, float* to) {
    F a, b;
    LineOf<float>::load_two(from, a, b);
    LineOf<S>::arrange(a, b);
    LineOf<float>::store_two(LineOf<S>::clean(a), LineOf<S>::clean(b), to);
  }
  static HYLA_INLINE void clear(F (&ak)[kRowsInTurn], F (&aq)[kRowsInTurn]) {
#pragma GCC unroll 4
    for (int j = 0; j < kRowsInTurn; ++j) ak[j] = aq[j] = zero();
  }
  template <class S, class Kept>
  HYLA_INLINE void add_products(int i, const S* from, std::int64_t stride, Kept& kept,
                                F (&ak)[kRowsInTurn], F (&aq)[kRowsInTurn]) const {
    F k0, k1, q0, q1;
    LineOf<float>::load_two(k + i * kLanes, k0, k1);
    LineOf<float>::load_two(q + i * kLanes, q0, q1);
#pragma GCC unroll 4
    for (int j = 0; j < kRowsInTurn; ++j) {
      F x, y;
      LineOf<S>::load_two(from + j * stride + i * kLanes, x, y);
      if (LineOf<S>::kArranged) LineOf<float>::store_two(x, y, kept[j] + i * kLanes);
      ak[j] = fma(k0, x, ak[j]);
      aq[j] = fma(q0, x, aq[j]);
      ak[j] = fma(k1, y, ak[j]);
      aq[j] = fma(q1, y, aq[j]);
    }
  }
};

template <int kVectors>
struct TwoAtOnce {
  using Keys = std::conditional_t<kLanes == 16, KeysInRegisters<kVectors>, KeysInMemory<kVectors>>;

  template <class S>
  static constexpr bool takes() {
    return kLanes >= 8 && LineOf<S>::kInTurn;
  }

  // `count`: a multiple of kRowsInTurn. `to`: null where the new state is not wanted. `next`: where
  // rows behind the last one are, to be fetched.
  template <Fetch kFetch, class S>
  static void run(const Token& t, std::int64_t count, const S* from, S* to, std::int64_t stride,
                  const S* next, const float* v, float* o) {
    if (to != nullptr) return rows<kFetch, true>(t, count, from, to, stride, next, v, o);
    rows<kFetch, false>(t, count, from, to, stride, next, v, o);
  }

 private:
  template <Fetch kFetch, bool kWritten, class S>
  static void rows(const Token& t, std::int64_t count, const S* from, S* to, std::int64_t stride,
                   const S* next, const float* v, float* o) {
    using Line = LineOf<S>;
    constexpr std::int64_t kRows = kRowsInTurn;
    constexpr std::int64_t kAhead = kFetch == Fetch::kTwice ? Line::kSooner : Line::kAhead;
    Keys keys;
    keys.template load_keys<S>(t);
    const F alpha = set(Line::clean(t.alpha));
    alignas(64) float ks[kLanes], qs[kLanes], delta[kLanes];
    alignas(64) float kept[2][kRows][Line::kArranged ? kVectors * kLanes : 1];
    F ak[kRows], aq[kRows];
    keys.meet(from, stride, kept[0], ak, aq);
    int now = 0;
    for (std::int64_t r = 0; r < count; r += kRows, from += kRows * stride, now = 1 - now) {
      sum4(ak[0], ak[1], ak[2], ak[3], ks);
      sum4(aq[0], aq[1], aq[2], aq[3], qs);
      finish_rows(t, ks, qs, v + r, delta, o + r);
      Line::clean_four(delta);
      // At the end some rows once more.
      const S* later = from + (r + kRows < count ? kRows * stride : 0);
      const auto ahead = [&](std::int64_t rows) {
        const std::int64_t beyond = r + rows - count;
        return beyond < 0 ? from + rows * stride : next + beyond * stride;
      };
      const S* far = kFetch == Fetch::kTwice ? ahead(Line::kLater) : next + r * stride;
      S* here = kWritten ? to + r * stride : nullptr;
      keys.template turn<kFetch, kWritten, S>({from, later, ahead(kAhead), far, here, stride},
                                              alpha, delta, kept[now], kept[1 - now], ak, aq);
    }
  }

  // As finish(), four floats at a time: a whole vector would wait until sums and other stores
  // before them have reached the cache.
  static HYLA_INLINE void finish_rows(const Token& t, const float* ks, const float* qs,
                                      const float* v, float* delta, float* o) {
    constexpr int kRows = kRowsInTurn;
    float d[kRows], out[kRows];
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) d[j] = t.beta * (v[j] - t.alpha * ks[j]);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) out[j] = __builtin_fmaf(t.qk, d[j], t.alpha * qs[j]);
    std::memcpy(delta, d, sizeof d);
    std::memcpy(o, out, sizeof out);
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TWO_AT_ONCE_H_
