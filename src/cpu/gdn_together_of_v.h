// A few tokens at once over states [K, V], V contiguous. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_GDN_TOGETHER_OF_V_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TOGETHER_OF_V_H_
#undef HYLA_CPU_GDN_TOGETHER_OF_V_H_
#else
#define HYLA_CPU_GDN_TOGETHER_OF_V_H_
#endif

#include "cpu/gdn_together.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// A group is two vectors of columns. They are kept as floats between products and update: lines of
// a state so far apart share places of the first cache.
struct TogetherOfV {
  static constexpr std::int64_t kGroup = 2 * kLanes;
  static constexpr bool kTiles = false;
  template <class S>
  static constexpr std::int64_t kept_floats() {
    return kGroup * kMaxDim;
  }
  template <class S>
  static bool arranges_keys(std::int64_t) {
    return false;
  }
  template <class S>
  static constexpr bool arranges_values() {
    return LineOf<S>::kArranged;
  }

  // `next`: as many elements of the next state, to be fetched meanwhile.
  template <class S>
  static HYLA_INLINE void all_products(const Together& t, std::int64_t K, std::int64_t count,
                                       const S* from, std::int64_t stride, const S* next,
                                       float* kept, float* ks, float* qs) {
    const Source<S> source{from, stride, count, next};
    if (count == kGroup) {
      products<From::kState>(t, 0, K, source, kept, ks, qs);
    } else {
      products<From::kTail>(t, 0, K, source, kept, ks, qs);
    }
    for (std::int64_t token = 4; token < t.tokens; token += 4) {
      products<From::kKept>(t, token, K, source, kept, ks, qs);
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count, const S*,
                                 const float* kept, S* to, std::int64_t stride,
                                 const float* weights, const Ahead<S>&) {
    if (t.tokens == 4) {
      update_columns<4>(t, K, count, kept, to, stride, weights);
    } else {
      update_columns<8>(t, K, count, kept, to, stride, weights);
    }
  }

 private:
  enum class From { kState, kTail, kKept };

  template <class S>
  struct Source {
    const S* from;
    std::int64_t stride, count;
    const S* next;
  };

  // Of four tokens. There are registers for the sums of k and q together, or for one of them.
  template <From kFrom, class S>
  static HYLA_INLINE void products(const Together& t, std::int64_t token, std::int64_t K,
                                   const Source<S>& source, float* kept, float* ks, float* qs) {
    const float(*k)[kMaxDim] = t.k + token;
    const float(*q)[kMaxDim] = t.q + token;
    ks += token * kGroup;
    qs += token * kGroup;
    if constexpr (kLanes == 16) {
      columns<8, kFrom>(k, q, K, source, kept, ks, qs);
    } else {
      columns<4, kFrom>(k, k, K, source, kept, ks, ks);
      columns<4, From::kKept>(q, q, K, source, kept, qs, qs);
    }
  }

  // Four keys of `k`, and four of `q`.
  template <int kCount, From kFrom, class S>
  static HYLA_INLINE void columns(const float (*k)[kMaxDim], const float (*q)[kMaxDim],
                                  std::int64_t K, const Source<S>& source, float* kept, float* ks,
                                  float* qs) {
    F sums[kCount][2];
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) sums[n][0] = sums[n][1] = zero();
    for (std::int64_t i = 0; i < K; ++i) {
      F a, b;
      if constexpr (kFrom == From::kKept) {
        LineOf<float>::load_two(kept + i * kGroup, a, b);
      } else {
        const S* line = source.from + i * source.stride;
        if (kFrom == From::kState) LineOf<S>::load_two(line, a, b);
        if (kFrom == From::kTail) LineOf<S>::load_some_two(line, source.count, a, b);
        prefetch<kGroup>(source.next + i * kGroup);
        LineOf<float>::store_two(a, b, kept + i * kGroup);
      }
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const F key = set(k[n][i]);
        sums[n][0] = fma(key, a, sums[n][0]);
        sums[n][1] = fma(key, b, sums[n][1]);
      }
#pragma GCC unroll 4
      for (int n = 4; n < kCount; ++n) {
        const F key = set(q[n - 4][i]);
        sums[n][0] = fma(key, a, sums[n][0]);
        sums[n][1] = fma(key, b, sums[n][1]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      LineOf<float>::store_two(sums[n][0], sums[n][1], ks + n * kGroup);
    }
#pragma GCC unroll 4
    for (int n = 4; n < kCount; ++n) {
      LineOf<float>::store_two(sums[n][0], sums[n][1], qs + (n - 4) * kGroup);
    }
  }

  template <int kTokens, class S>
  static HYLA_INLINE void update_columns(const Together& t, std::int64_t K, std::int64_t count,
                                         const float* kept, S* to, std::int64_t stride,
                                         const float* weights) {
    const F decay = set(LineOf<S>::clean(t.decay));
    F w[kTokens][2];
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      LineOf<float>::load_two(weights + token * kGroup, w[token][0], w[token][1]);
    }
    for (std::int64_t i = 0; i < K; ++i) {
      F a = mul(decay, load(kept + i * kGroup)), b = mul(decay, load(kept + i * kGroup + kLanes));
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
        const F key = set(t.k[token][i]);
        a = fma(key, w[token][0], a);
        b = fma(key, w[token][1], b);
      }
      if (count == kGroup) {
        LineOf<S>::store_two(a, b, to + i * stride);
      } else {
        LineOf<S>::store_some_two(a, b, to + i * stride, count);
      }
    }
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOGETHER_OF_V_H_
