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
// head into the second and what is near into the first.
enum class Fetch { kSecond, kFirst, kBoth };

template <int kVectors>
struct TwoAtOnce {
  static constexpr std::int64_t kRows = 4;

  template <class S>
  static constexpr bool takes() {
    return kLanes == 16 && LineOf<S>::kInTurn;
  }

  // `count`: a multiple of kRows. `to`: null where the new state is not wanted. `next`: where rows
  // behind the last one are, to be fetched.
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
    constexpr std::int64_t kAhead = Line::kAhead;
    F k[kVectors], q[kVectors];
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
    const F alpha = set(Line::clean(t.alpha));
    alignas(64) float ks[kLanes], qs[kLanes], delta[kLanes];
    // What was converted when it met k and q is not converted again.
    alignas(64) float kept[2][kRows][Line::kArranged ? kVectors * kLanes : 1];
    F ak[kRows], aq[kRows];
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) dot(k, q, from + j * stride, kept[0][j], ak[j], aq[j]);
    int now = 0;
    for (std::int64_t r = 0; r < count; r += kRows, from += kRows * stride, now = 1 - now) {
      sum4(ak[0], ak[1], ak[2], ak[3], ks);
      sum4(aq[0], aq[1], aq[2], aq[3], qs);
      finish_rows(t, ks, qs, v + r, delta, o + r);
      Line::clean_four(delta);
      // At the end some rows once more.
      const S* later = from + (r + kRows < count ? kRows * stride : 0);
      const std::int64_t far = r + kAhead - count;
      const S* fetched = far < 0 ? from + kAhead * stride : next + far * stride;
      const S* row = from;
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        dot(k, q, later, kept[1 - now][j], ak[j], aq[j]);
        update<kFetch, kWritten>(k, alpha, set(delta[j]), row, kept[now][j], to, fetched);
        advance(later, stride);
        advance(fetched, stride);
        const S* far_row = next + (r + j) * stride;
        if (kFetch == Fetch::kBoth && Line::asked_far(far_row))
          prefetch<kVectors * kLanes>(far_row);
        advance(row, stride);
        if (kWritten) advance(to, stride);
      }
    }
  }

  // Compilers that see through it keep a register, or memory, for each line of each row.
  template <class S>
  static HYLA_INLINE void advance(S*& at, std::int64_t stride) {
    at += stride;
    asm("" : "+r"(at));
  }

  // As finish(), four floats at a time: a whole vector would wait until sums and other stores
  // before them have reached the cache.
  static HYLA_INLINE void finish_rows(const Token& t, const float* ks, const float* qs,
                                      const float* v, float* delta, float* o) {
    float d[kRows], out[kRows];
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) d[j] = t.beta * (v[j] - t.alpha * ks[j]);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) out[j] = __builtin_fmaf(t.qk, d[j], t.alpha * qs[j]);
    std::memcpy(delta, d, sizeof d);
    std::memcpy(o, out, sizeof out);
  }

  template <Fetch kFetch, bool kWritten, class S>
  static HYLA_INLINE void update(const F (&k)[kVectors], F alpha, F delta, const S* from,
                                 const float* kept, S* to, const S* fetched) {
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
  static HYLA_INLINE void dot(const F (&k)[kVectors], const F (&q)[kVectors], const S* line,
                              float* kept, F& ak, F& aq) {
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

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TWO_AT_ONCE_H_
