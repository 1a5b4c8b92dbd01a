// One token's step on a group of value rows, in both layouts of the state. Compiled for each target
// (see foreach_target.h).
//
//     seen  = alpha * k.S           one sweep over the old state makes both products
//     delta = beta * (v - seen)
//     S'    = alpha * S + k delta   a second sweep, over what the first left in the L1 cache
//     o     = alpha * q.S + (q.k) delta
#if defined(HYLA_CPU_GDN_LAYOUTS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_LAYOUTS_H_
#undef HYLA_CPU_GDN_LAYOUTS_H_
#else
#define HYLA_CPU_GDN_LAYOUTS_H_
#endif

#include "cpu/gdn_tokens.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class T>
HYLA_INLINE F load_some(const T* from, std::int64_t n) {
  return n >= kLanes ? load(from) : load_n(from, static_cast<int>(n));
}
template <class T>
HYLA_INLINE void store_some(F x, T* to, std::int64_t n) {
  n >= kLanes ? store(x, to) : store_n(x, to, static_cast<int>(n));
}

// [V, K], K contiguous: a group is kGroup rows, `stride` elements apart.
struct RowsOfK {
  static constexpr std::int64_t kGroup = 4;
  static std::int64_t inner(std::int64_t K, std::int64_t) { return K; }
  static std::int64_t outer(std::int64_t, std::int64_t count) { return count; }

  // `to` may be `from`, or null when the new state is not wanted.
  template <class S>
  static void step(const Token& t, std::int64_t K, std::int64_t /*count*/, const S* from,
                   std::int64_t from_stride, S* to, std::int64_t to_stride, const float* v,
                   float* o) {
    F ak[kGroup], aq[kGroup];
    for (int r = 0; r < kGroup; ++r) ak[r] = aq[r] = zero();
    std::int64_t i = 0;
    for (; i + kLanes <= K; i += kLanes) {
      const F k = load(t.k + i), q = load(t.q + i);
      for (int r = 0; r < kGroup; ++r) {
        const F s = load(from + r * from_stride + i);
        ak[r] = fma(k, s, ak[r]);
        aq[r] = fma(q, s, aq[r]);
      }
    }
    const int tail = static_cast<int>(K - i);
    if (tail > 0) {
      const F k = load(t.k + i), q = load(t.q + i);
      for (int r = 0; r < kGroup; ++r) {
        const F s = load_n(from + r * from_stride + i, tail);
        ak[r] = fma(k, s, ak[r]);
        aq[r] = fma(q, s, aq[r]);
      }
    }
    float ks[kGroup], qs[kGroup];
    sum4(ak[0], ak[1], ak[2], ak[3], ks);
    sum4(aq[0], aq[1], aq[2], aq[3], qs);
    F delta[kGroup];
    for (int r = 0; r < kGroup; ++r) {
      const float d = t.beta * (v[r] - t.alpha * ks[r]);
      o[r] = t.alpha * qs[r] + t.qk * d;
      delta[r] = set(d);
    }
    if (to == nullptr) return;
    const F alpha = set(t.alpha);
    for (i = 0; i + kLanes <= K; i += kLanes) {
      const F k = load(t.k + i);
      for (int r = 0; r < kGroup; ++r) {
        const F s = mul(alpha, load(from + r * from_stride + i));
        store(fma(k, delta[r], s), to + r * to_stride + i);
      }
    }
    if (tail > 0) {
      const F k = load(t.k + i);
      for (int r = 0; r < kGroup; ++r) {
        const F s = mul(alpha, load_n(from + r * from_stride + i, tail));
        store_n(fma(k, delta[r], s), to + r * to_stride + i, tail);
      }
    }
  }
};

// [K, V], V contiguous: a group is up to kGroup columns; `stride` is that of K.
struct RowsOfV {
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kGroup = kVectors * kLanes;
  static std::int64_t inner(std::int64_t, std::int64_t count) { return count; }
  static std::int64_t outer(std::int64_t K, std::int64_t) { return K; }

  template <class S>
  static void step(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                   std::int64_t from_stride, S* to, std::int64_t to_stride, const float* v,
                   float* o) {
    if (count == kGroup) {
      columns<kVectors>(t, K, count, from, from_stride, to, to_stride, v, o);
      return;
    }
    for (std::int64_t j = 0; j < count; j += kLanes) {
      columns<1>(t, K, count - j, from + j, from_stride, to == nullptr ? to : to + j, to_stride,
                 v + j, o + j);
    }
  }

  template <int kCount, class S>
  static HYLA_INLINE void columns(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                                  std::int64_t from_stride, S* to, std::int64_t to_stride,
                                  const float* v, float* o) {
    const std::int64_t lanes = kCount == 1 ? count : kLanes;
    F ak[kCount], aq[kCount];
    for (int c = 0; c < kCount; ++c) ak[c] = aq[c] = zero();
    for (std::int64_t i = 0; i < K; ++i) {
      const F k = set(t.k[i]), q = set(t.q[i]);
      for (int c = 0; c < kCount; ++c) {
        const F s = load_some(from + i * from_stride + c * kLanes, lanes);
        ak[c] = fma(k, s, ak[c]);
        aq[c] = fma(q, s, aq[c]);
      }
    }
    const F alpha = set(t.alpha), beta = set(t.beta), qk = set(t.qk);
    F delta[kCount];
    for (int c = 0; c < kCount; ++c) {
      const F seen = mul(alpha, ak[c]);
      delta[c] = mul(beta, sub(load_some(v + c * kLanes, lanes), seen));
      store_some(fma(qk, delta[c], mul(alpha, aq[c])), o + c * kLanes, lanes);
    }
    if (to == nullptr) return;
    for (std::int64_t i = 0; i < K; ++i) {
      const F k = set(t.k[i]);
      for (int c = 0; c < kCount; ++c) {
        const F s = mul(alpha, load_some(from + i * from_stride + c * kLanes, lanes));
        store_some(fma(k, delta[c], s), to + i * to_stride + c * kLanes, lanes);
      }
    }
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_LAYOUTS_H_
