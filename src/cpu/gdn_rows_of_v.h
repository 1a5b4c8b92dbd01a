// One token's step over states [K, V], V contiguous. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_GDN_ROWS_OF_V_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_ROWS_OF_V_H_
#undef HYLA_CPU_GDN_ROWS_OF_V_H_
#else
#define HYLA_CPU_GDN_ROWS_OF_V_H_
#endif

#include "cpu/gdn_step.h"
#include "cpu/gdn_together_of_v.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

struct RowsOfV {
  // Whole lines of the usual state, where there are registers for their sums.
  static constexpr int kVectors = kLanes == 16 ? 8 : 4;
  static constexpr std::int64_t kGroup = kVectors * kLanes;
  using Together = TogetherOfV;
  static std::int64_t inner(std::int64_t, std::int64_t count) { return count; }
  static std::int64_t outer(std::int64_t K, std::int64_t) { return K; }

  template <class S>
  static bool rows_in_place(const Token&, std::int64_t, std::int64_t, const S*, S*, std::int64_t,
                            const S*, const RowsPlan&, const float*, float*) {
    return false;
  }

  // As RowsOfK::step, over `count` columns; `stride` is that of K.
  template <class S>
  static void step(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                   std::int64_t from_stride, S* to, std::int64_t to_stride, const S* next,
                   const float* v, float* o) {
    if (count == kGroup) {
      columns<kVectors>(t, K, count, from, from_stride, to, to_stride, next, v, o);
      return;
    }
    for (std::int64_t j = 0; j < count; j += kLanes) {
      columns<1>(t, K, count - j, from + j, from_stride, to == nullptr ? to : to + j, to_stride,
                 next, v + j, o + j);
    }
  }

  template <int kCount, class S>
  static HYLA_INLINE void columns(const Token& t, std::int64_t K, std::int64_t count, const S* from,
                                  std::int64_t from_stride, S* to, std::int64_t to_stride,
                                  const S* next, const float* v, float* o) {
    const std::int64_t lanes = kCount == 1 ? count : kLanes;
    F ak[kCount], aq[kCount];
    for (int c = 0; c < kCount; ++c) ak[c] = aq[c] = zero();
    for (std::int64_t i = 0; i < K; ++i) {
      const F k = set(t.k[i]), q = set(t.q[i]);
      prefetch<kCount * kLanes>(next + i * from_stride);
#pragma GCC unroll 8
      for (int c = 0; c < kCount; ++c) {
        const F s = load_some(from + i * from_stride + c * kLanes, lanes);
        ak[c] = fma(k, s, ak[c]);
        aq[c] = fma(q, s, aq[c]);
      }
    }
    alignas(64) float ks[kCount * kLanes], qs[kCount * kLanes], delta[kCount * kLanes];
    for (int c = 0; c < kCount; ++c) {
      store(ak[c], ks + c * kLanes);
      store(aq[c], qs + c * kLanes);
    }
    finish(t, kCount == 1 && count < kLanes ? count : kCount * kLanes, ks, qs, v, delta, o);
    if (to == nullptr) return;
    const F alpha = set(t.alpha);
    F d[kCount];
    for (int c = 0; c < kCount; ++c) d[c] = load(delta + c * kLanes);
    for (std::int64_t i = 0; i < K; ++i) {
      const F k = set(t.k[i]);
      prefetch<kCount * kLanes>(next + i * from_stride);
#pragma GCC unroll 8
      for (int c = 0; c < kCount; ++c) {
        const F s = mul(alpha, load_some(from + i * from_stride + c * kLanes, lanes));
        store_some(fma(k, d[c], s), to + i * to_stride + c * kLanes, lanes);
      }
    }
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_ROWS_OF_V_H_
