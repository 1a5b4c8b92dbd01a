// One token's step over states [V, K], K contiguous. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_GDN_ROWS_OF_K_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_ROWS_OF_K_H_
#undef HYLA_CPU_GDN_ROWS_OF_K_H_
#else
#define HYLA_CPU_GDN_ROWS_OF_K_H_
#endif

#include "cpu/gdn_step.h"
#include "cpu/gdn_together_of_k.h"
#include "cpu/gdn_two_at_once.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Keys of any length: k and q are loaded again for every four rows.
struct AnyKeys {
  // k.S and q.S of four rows.
  template <class S>
  static HYLA_INLINE void dots4(const Token& t, std::int64_t K, const S* from, std::int64_t stride,
                                float* ks, float* qs) {
    F k0 = zero(), k1 = zero(), k2 = zero(), k3 = zero();
    F q0 = zero(), q1 = zero(), q2 = zero(), q3 = zero();
    for (std::int64_t i = 0; i < K; i += kLanes) {
      const std::int64_t n = K - i;
      const F k = load(t.k + i), q = load(t.q + i);
      const F s0 = load_some(from + i, n), s1 = load_some(from + stride + i, n);
      const F s2 = load_some(from + 2 * stride + i, n), s3 = load_some(from + 3 * stride + i, n);
      k0 = fma(k, s0, k0);
      k1 = fma(k, s1, k1);
      k2 = fma(k, s2, k2);
      k3 = fma(k, s3, k3);
      q0 = fma(q, s0, q0);
      q1 = fma(q, s1, q1);
      q2 = fma(q, s2, q2);
      q3 = fma(q, s3, q3);
    }
    sum4(k0, k1, k2, k3, ks);
    sum4(q0, q1, q2, q3, qs);
  }

  template <class S>
  static HYLA_INLINE void dots(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                               std::int64_t stride, float* ks, float* qs) {
    for (std::int64_t r = 0; r < count; r += 4) {
      dots4(t, K, from + r * stride, stride, ks + r, qs + r);
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                                 std::int64_t from_stride, S* to, std::int64_t to_stride,
                                 const S* next, const float* delta) {
    const F alpha = set(t.alpha);
    for (std::int64_t r = 0; r < count; r += 4) {
      const F d0 = set(delta[r]), d1 = set(delta[r + 1]);
      const F d2 = set(delta[r + 2]), d3 = set(delta[r + 3]);
      for (std::int64_t i = 0; i < K; i += kLanes) {
        const std::int64_t n = K - i;
        const F k = load(t.k + i);
        const S* a = from + r * from_stride + i;
        S* b = to + r * to_stride + i;
        prefetch<4 * kLanes>(next + r * from_stride + 4 * i);
        const F s0 = mul(alpha, load_some(a, n)), s1 = mul(alpha, load_some(a + from_stride, n));
        const F s2 = mul(alpha, load_some(a + 2 * from_stride, n));
        const F s3 = mul(alpha, load_some(a + 3 * from_stride, n));
        store_some(fma(k, d0, s0), b, n);
        store_some(fma(k, d1, s1), b + to_stride, n);
        store_some(fma(k, d2, s2), b + 2 * to_stride, n);
        store_some(fma(k, d3, s3), b + 3 * to_stride, n);
      }
    }
  }
};

// Keys of kVectors vectors that stay in registers, so that states are read line after line.
template <int kVectors>
struct KeptKeys {
  template <class S>
  static HYLA_INLINE void dots(const Token& t, std::int64_t, std::int64_t count, const S* from,
                               std::int64_t stride, float* ks, float* qs) {
    F k[kVectors], q[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      k[i] = load(t.k + i * kLanes);
      q[i] = load(t.q + i * kLanes);
    }
    for (std::int64_t r = 0; r < count; r += 4) {
      F ak[4], aq[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const S* line = from + (r + j) * stride;
        ak[j] = aq[j] = zero();
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          const F s = load(line + i * kLanes);
          ak[j] = fma(k[i], s, ak[j]);
          aq[j] = fma(q[i], s, aq[j]);
        }
      }
      sum4(ak[0], ak[1], ak[2], ak[3], ks + r);
      sum4(aq[0], aq[1], aq[2], aq[3], qs + r);
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Token& t, std::int64_t, std::int64_t count, const S* from,
                                 std::int64_t from_stride, S* to, std::int64_t to_stride,
                                 const S* next, const float* delta) {
    F k[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) k[i] = load(t.k + i * kLanes);
    const F alpha = set(t.alpha);
    for (std::int64_t r = 0; r < count; ++r) {
      const F d = set(delta[r]);
      const S* a = from + r * from_stride;
      S* b = to + r * to_stride;
      prefetch<kVectors * kLanes>(next + r * from_stride);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        store(fma(k[i], d, mul(alpha, load(a + i * kLanes))), b + i * kLanes);
      }
    }
  }
};

#if HYLA_TARGET_HAS_PAIRS
// bfloat16 states with bfloat16 keys: products of pairs, and updates of even and odd elements.
template <int kVectors>
struct PairedKeys {
  static HYLA_INLINE void dots(const Token& t, std::int64_t, std::int64_t count,
                               const bfloat16* from, std::int64_t stride, float* ks, float* qs,
                               const bfloat16* next = nullptr) {
    P k[kVectors], q[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      k[i] = load_pairs(t.k_pairs + i * 2 * kLanes);
      q[i] = load_pairs(t.q_pairs + i * 2 * kLanes);
    }
    for (std::int64_t r = 0; r < count; r += 4) {
      F ak[4], aq[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const bfloat16* line = from + (r + j) * stride;
        if (next != nullptr) prefetch<kVectors * 2 * kLanes>(next + (r + j) * stride);
        ak[j] = aq[j] = zero();
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
          const P s = load_pairs(line + i * 2 * kLanes);
          ak[j] = dot_pairs(ak[j], k[i], s);
          aq[j] = dot_pairs(aq[j], q[i], s);
        }
      }
      sum4(ak[0], ak[1], ak[2], ak[3], ks + r);
      sum4(aq[0], aq[1], aq[2], aq[3], qs + r);
    }
    const F k_factor = set(t.k_factor), q_factor = set(t.q_factor);
    for (std::int64_t r = 0; r < count; r += kLanes) {
      store(mul(k_factor, load(ks + r)), ks + r);
      store(mul(q_factor, load(qs + r)), qs + r);
    }
  }

  static HYLA_INLINE void update(const Token& t, std::int64_t, std::int64_t count,
                                 const bfloat16* from, std::int64_t from_stride, bfloat16* to,
                                 std::int64_t to_stride, const bfloat16* next, const float* delta) {
    F even_k[kVectors], odd_k[kVectors];
    const F factor = set(t.k_factor);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const P k = load_pairs(t.k_pairs + i * 2 * kLanes);
      even_k[i] = mul(factor, even(k));
      odd_k[i] = mul(factor, odd(k));
    }
    const F alpha = set(t.alpha);
    for (std::int64_t r = 0; r < count; ++r) {
      const F d = set(delta[r]);
      const bfloat16* a = from + r * from_stride;
      bfloat16* b = to + r * to_stride;
      prefetch<kVectors * 2 * kLanes>(next + r * from_stride);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const P s = load_pairs(a + i * 2 * kLanes);
        store_pairs(pack_pairs(fma(even_k[i], d, mul(alpha, even(s))),
                               fma(odd_k[i], d, mul(alpha, odd(s)))),
                    b + i * 2 * kLanes);
      }
    }
  }
};
#endif

struct RowsOfK {
  // Value rows that are read and updated together; they stay in the L1 cache in between.
  static constexpr std::int64_t kGroup = 16;
  static constexpr std::int64_t kGroupsAhead = 4;  // fetched: behind the one that meets k and q
  using Together = TogetherOfK;
  static std::int64_t inner(std::int64_t K, std::int64_t) { return K; }
  static std::int64_t outer(std::int64_t, std::int64_t count) { return count; }

  // `count` value rows, a multiple of 4, `stride` elements apart. `to` may be `from`, or null when
  // the new state is not wanted. `next`: where the next group will begin, to be fetched while this
  // one is updated.
  template <class S>
  static void step(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                   std::int64_t from_stride, S* to, std::int64_t to_stride, const S* next,
                   const float* v, float* o) {
    if constexpr (kLanes == 16) {
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (sizeof(S) == 2 && std::is_same_v<S, bfloat16>) {
        if (K == 8 * kLanes && t.k_pairs != nullptr) {
          sweep<PairedKeys<4>>(t, K, count, from, from_stride, to, to_stride, next, v, o);
          return;
        }
      }
#endif
      if (K == 8 * kLanes) {
        sweep<KeptKeys<8>>(t, K, count, from, from_stride, to, to_stride, next, v, o);
        return;
      }
    }
    sweep<AnyKeys>(t, K, count, from, from_stride, to, to_stride, next, v, o);
  }

  // Any number of value rows of a head; false where that is not made for them. `next`: where the
  // rows behind them begin. Bits do not depend on `count`, nor on whether the state is wanted.
  template <class S>
  static bool rows_in_place(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                            S* to, std::int64_t stride, const S* next, const RowsPlan& plan,
                            const float* v, float* o) {
    if (K != 128 || count % 4 != 0) return false;
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (std::is_same_v<S, bfloat16>) {
      if (plan.pairs && t.k_pairs != nullptr) {
        if (to == nullptr) return false;
        sweep_in_turn<PairedKeys<4>>(t, K, count, from, to, stride, next, v, o);
        return true;
      }
    }
#endif
    if constexpr (TwoAtOnce<128 / kLanes>::template takes<S>()) {
      run_two_at_once(t, count, from, to, stride, next, plan, v, o);
      return true;
    }
    return false;
  }

  template <class S>
  static void run_two_at_once(const Token& t, std::int64_t count, const S* from, S* to,
                              std::int64_t stride, const S* next, const RowsPlan& plan,
                              const float* v, float* o) {
    using Two = TwoAtOnce<128 / kLanes>;
    if (!plan.near) return Two::run<Fetch::kSecond>(t, count, from, to, stride, next, v, o);
    if (!plan.far) return Two::run<Fetch::kFirst>(t, count, from, to, stride, next, v, o);
    if (plan.twice) return Two::run<Fetch::kTwice>(t, count, from, to, stride, next, v, o);
    Two::run<Fetch::kBoth>(t, count, from, to, stride, next, v, o);
  }

  // A group is updated after the next one has met k and q: nothing waits for their sums. One that
  // comes later is fetched meanwhile.
  template <class Keys, class S>
  static void sweep_in_turn(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                            S* to, std::int64_t stride, const S* next, const float* v, float* o) {
    alignas(64) float ks[2][kGroup], qs[2][kGroup], delta[kGroup];
    Keys::dots(t, K, std::min(kGroup, count), from, stride, ks[0], qs[0]);
    int now = 0;
    for (std::int64_t r = 0; r < count; r += kGroup, now = 1 - now) {
      const std::int64_t later = r + kGroup, far = later + kGroupsAhead * kGroup;
      const S* fetched = far < count ? from + far * stride : next + (far - count) * stride;
      finish(t, std::min(kGroup, count - r), ks[now], qs[now], v + r, delta, o + r);
      if (later < count) {
        Keys::dots(t, K, std::min(kGroup, count - later), from + later * stride, stride,
                   ks[1 - now], qs[1 - now], fetched);
      }
      Keys::update(t, K, std::min(kGroup, count - r), from + r * stride, stride, to + r * stride,
                   stride, fetched, delta);
    }
  }

  template <class Keys, class S>
  static HYLA_INLINE void sweep(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                                std::int64_t from_stride, S* to, std::int64_t to_stride,
                                const S* next, const float* v, float* o) {
    alignas(64) float ks[kGroup], qs[kGroup], delta[kGroup];
    Keys::dots(t, K, count, from, from_stride, ks, qs);
    finish(t, count, ks, qs, v, delta, o);
    if (to != nullptr) Keys::update(t, K, count, from, from_stride, to, to_stride, next, delta);
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_ROWS_OF_K_H_
