// What both layouts of the state share in one token's step. Compiled for each target (see
// foreach_target.h).
//
//     seen  = alpha * k.S           one sweep over the old state makes both products
//     delta = beta * (v - seen)
//     S'    = alpha * S + k delta   a second sweep, over what the first left in a near cache
//     o     = alpha * q.S + (q.k) delta
#if defined(HYLA_CPU_GDN_STEP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_STEP_H_
#undef HYLA_CPU_GDN_STEP_H_
#else
#define HYLA_CPU_GDN_STEP_H_
#endif

#include "cpu/gdn_tokens.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Asks for the cache lines of kCount elements, up to the second cache: the first is full of the
// group at hand. kNear: into the first one.
template <int kCount, bool kNear = false, class S>
HYLA_INLINE void prefetch(const S* at) {
  constexpr int kLine = 64 / sizeof(S);
  for (int i = 0; i < kCount; i += kLine) __builtin_prefetch(at + i, 0, kNear ? 3 : 2);
}

template <class S>
HYLA_INLINE void prefetch_line(const S* at, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(S);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(at + i, 0, 2);
}

// Asks for a line of every page of memory: a processor finds several addresses at once, but nothing
// passes by a request that waits for its own.
template <class S>
HYLA_INLINE void prefetch_pages(const S* at, std::int64_t count) {
  constexpr std::int64_t kPage = 4096 / sizeof(S);
  for (std::int64_t i = 0; i < count; i += kPage) __builtin_prefetch(at + i, 0, 2);
}

// delta and o of `count` value rows whose products with the old state are known; ks, qs and delta
// have room for whole vectors.
HYLA_INLINE void finish(const Token& t, std::int64_t count, const float* ks, const float* qs,
                        const float* v, float* delta, float* o) {
  const F alpha = set(t.alpha), beta = set(t.beta), qk = set(t.qk);
  for (std::int64_t j = 0; j < count; j += kLanes) {
    const std::int64_t n = count - j;
    const F d = mul(beta, sub(load_some(v + j, n), mul(alpha, load(ks + j))));
    store(d, delta + j);
    store_some(fma(qk, d, mul(alpha, load(qs + j))), o + j, n);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_STEP_H_
