// A few tokens at once over states [V, K], K contiguous. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_GDN_TOGETHER_OF_K_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TOGETHER_OF_K_H_
#undef HYLA_CPU_GDN_TOGETHER_OF_K_H_
#else
#define HYLA_CPU_GDN_TOGETHER_OF_K_H_
#endif

#include "cpu/gdn_together.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// [V, K]: `count` rows, a multiple of 4 up to 16.
struct TogetherOfK {
  static constexpr std::int64_t kGroup = 16;
  static constexpr bool kTiles = false;
  // Keys that meet four rows at a time, and rows of which two vectors are updated: 16 registers have
  // no room for more.
  static constexpr int kKeys = kLanes == 16 ? 4 : 2;
  static constexpr int kPasses = 8 / kKeys;  // over the rows, for four tokens
  static constexpr int kUpdated = kLanes == 16 ? 4 : 2;

  // 16-bit states are converted once, those of float32 stay in the first cache meanwhile.
  template <class S>
  static constexpr bool keeps() {
    return !std::is_same_v<S, float>;
  }
  template <class S>
  static constexpr std::int64_t kept_floats() {
    return keeps<S>() ? kGroup * kMaxDim : 1;
  }
  // Keys go by LineOf<S>::arrange() where its order is used.
  template <class S>
  static bool arranges_keys(std::int64_t K) {
    return LineOf<S>::kArranged && K % (2 * kLanes) == 0;
  }
  template <class S>
  static constexpr bool arranges_values() {
    return false;
  }

  // `next`: a group that comes later, to be fetched meanwhile.
  template <class S>
  static HYLA_INLINE void all_products(const Together& t, std::int64_t K, std::int64_t count,
                                       const S* from, std::int64_t stride, const S* next,
                                       float* kept, float* ks, float* qs) {
    if constexpr (keeps<S>()) {
      keep(K, count, from, stride, kept);
      // Whole vectors, with zeros at their end.
      all_products<false>(t, padded(K), count, kept, padded(K), next, ks, qs);
    } else if (K % kLanes == 0) {
      all_products<false>(t, K, count, from, stride, next, ks, qs);
    } else {
      all_products<true>(t, K, count, from, stride, next, ks, qs);
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count,
                                 const S* from, const float* kept, S* to, std::int64_t stride,
                                 const float* weights, const Ahead<S>&) {
    if (t.tokens == 4) {
      update<4>(t, K, count, from, kept, to, stride, weights);
    } else {
      update<8>(t, K, count, from, kept, to, stride, weights);
    }
  }

  // Products of kKeys keys with all rows. Meanwhile a part of the next group is fetched.
  template <bool kTail, class S>
  static HYLA_INLINE void products(const KeyRows& keys, std::int64_t first, std::int64_t K,
                                   std::int64_t count, const float* from, std::int64_t stride,
                                   const S* ahead, float* to) {
    for (std::int64_t r = 0; r < count; r += 4) {
      F sums[kKeys][4];  // [key][row]
#pragma GCC unroll 4
      for (int n = 0; n < kKeys; ++n) {
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) sums[n][m] = zero();
      }
      for (std::int64_t i = 0; i < K; i += kLanes) {
        const std::int64_t lanes = kTail ? K - i : kLanes;
        F s[4];
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) s[m] = load_some(from + (r + m) * stride + i, lanes);
        prefetch<4 * kLanes / kPasses>(ahead + r / kPasses * K + 4 / kPasses * i);
#pragma GCC unroll 4
        for (int n = 0; n < kKeys; ++n) {
          const F key = load(keys[first + n] + i);
#pragma GCC unroll 4
          for (int m = 0; m < 4; ++m) sums[n][m] = fma(key, s[m], sums[n][m]);
        }
      }
#pragma GCC unroll 4
      for (int n = 0; n < kKeys; ++n) {
        sum4(sums[n][0], sums[n][1], sums[n][2], sums[n][3], to + (first + n) * kGroup + r);
      }
    }
  }
  template <bool kTail, class S>
  static HYLA_INLINE void all_products(const Together& t, std::int64_t K, std::int64_t count,
                                       const float* from, std::int64_t stride, const S* next,
                                       float* ks, float* qs) {
    const std::int64_t part = count / kPasses * K;
    for (std::int64_t token = 0; token < t.tokens; token += kKeys) {
      const S* ahead = next + token % 4 / kKeys * 2 * part;
      products<kTail>(t.k, token, K, count, from, stride, ahead, ks);
      products<kTail>(t.q, token, K, count, from, stride, ahead + part, qs);
    }
  }

  template <class S>
  static HYLA_INLINE void keep(std::int64_t K, std::int64_t count, const S* from,
                               std::int64_t stride, float* kept) {
    for (std::int64_t r = 0; r < count; ++r, from += stride) {
      float* to = kept + r * padded(K);
      if (K % (2 * kLanes) == 0) {
        for (std::int64_t i = 0; i < K; i += 2 * kLanes) {
          F a, b;
          LineOf<S>::load_two(from + i, a, b);
          LineOf<float>::store_two(a, b, to + i);
        }
      } else {
        for (std::int64_t i = 0; i < K; i += kLanes) store(load_some(from + i, K - i), to + i);
      }
    }
  }

  template <int kTokens, class S>
  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count,
                                 const S* from, const float* kept, S* to, std::int64_t stride,
                                 const float* weights) {
    if constexpr (!keeps<S>()) {
      if (kLanes < 16 && K % (2 * kLanes) == 0) {
        update_rows_by_two<kTokens>(t, K, count, from, stride, to, stride, weights,
                                    static_cast<Ahead<S>*>(nullptr));
      } else {
        update_rows<kTokens>(t, K, count, from, stride, to, stride, weights);
      }
    } else if (K % (2 * kLanes) == 0) {
      update_rows_by_two<kTokens>(t, K, count, kept, K, to, stride, weights,
                                  static_cast<Ahead<S>*>(nullptr));
    } else {
      update_rows<kTokens>(t, K, count, kept, padded(K), to, stride, weights);
    }
  }

  // Of some rows.
  template <int kTokens, int kRows>
  static HYLA_INLINE void spread_weights(const float* weights, F (&w)[kTokens][kRows]) {
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) w[token][m] = set(weights[token * kGroup + m]);
    }
  }

  template <int kTokens, class S>
  static HYLA_INLINE void update_rows(const Together& t, std::int64_t K, std::int64_t count,
                                      const float* from, std::int64_t from_stride, S* to,
                                      std::int64_t to_stride, const float* weights) {
    const F decay = set(t.decay);
    for (std::int64_t r = 0; r < count; r += 4) {
      F w[kTokens][4];
      spread_weights(weights + r, w);
      for (std::int64_t i = 0; i < K; i += kLanes) {
        F s[4];
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) {
          s[m] = mul(decay, load_some(from + (r + m) * from_stride + i, K - i));
        }
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          const F key = load(t.k[token] + i);
#pragma GCC unroll 4
          for (int m = 0; m < 4; ++m) s[m] = fma(key, w[token][m], s[m]);
        }
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) store_some(s[m], to + (r + m) * to_stride + i, K - i);
      }
    }
  }

  // As LineOf<S> writes them.
  template <int kTokens, class From, class S>
  static HYLA_INLINE void update_rows_by_two(const Together& t, std::int64_t K, std::int64_t count,
                                             const From* from, std::int64_t from_stride, S* to,
                                             std::int64_t stride, const float* weights,
                                             const Ahead<S>* ahead) {
    const F decay = set(LineOf<S>::clean(t.decay));
    for (std::int64_t r = 0; r < count; r += kUpdated) {
      F w[kTokens][kUpdated];
      spread_weights(weights + r, w);
      for (std::int64_t i = 0; i < K; i += 2 * kLanes) {
        F a[kUpdated], b[kUpdated];
#pragma GCC unroll 4
        for (int m = 0; m < kUpdated; ++m) {
          LineOf<From>::load_two(from + (r + m) * from_stride + i, a[m], b[m]);
          if (ahead != nullptr) ahead->ask((r + m) * stride + i);
          a[m] = mul(decay, a[m]);
          b[m] = mul(decay, b[m]);
        }
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          F first, second;
          LineOf<float>::load_two(t.k[token] + i, first, second);
#pragma GCC unroll 4
          for (int m = 0; m < kUpdated; ++m) {
            a[m] = fma(first, w[token][m], a[m]);
            b[m] = fma(second, w[token][m], b[m]);
          }
        }
#pragma GCC unroll 4
        for (int m = 0; m < kUpdated; ++m)
          LineOf<S>::store_two(a[m], b[m], to + (r + m) * stride + i);
      }
    }
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOGETHER_OF_K_H_
