// A few tokens at once on a group of value rows: every token's products with the state before all
// of them, a triangular solve among the tokens, one update. The mathematics of cpu/gdn_chunk.h
// without matrix tiles, for MTP, whose state is read and written once. Compiled for each target
// (see foreach_target.h).
#if defined(HYLA_CPU_GDN_TOGETHER_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TOGETHER_H_
#undef HYLA_CPU_GDN_TOGETHER_H_
#else
#define HYLA_CPU_GDN_TOGETHER_H_
#endif

#include "cpu/gdn_step.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

using KeyRows = float[kTokenBlock][kMaxDim];

// What the tokens of a head make of each other, for all heads that share q and k.
struct TokenProducts {
  float kk[kTokenBlock][kTokenBlock];  // k[t].k[s], s <= t
  float qk[kTokenBlock][kTokenBlock];  // q[t].k[s]

  void make(const KeyRows& q, const KeyRows& k, std::int64_t count, std::int64_t width) {
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t s = 0; s <= t; s += 4) {
        four(k[t], k + s, width, kk[t] + s);
        four(q[t], k + s, width, qk[t] + s);
      }
    }
  }

 private:
  static HYLA_INLINE void four(const float* x, const float (*keys)[kMaxDim], std::int64_t width,
                               float* to) {
    F sums[4] = {zero(), zero(), zero(), zero()};
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const F a = load(x + i);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) sums[n] = fma(a, load(keys[n] + i), sums[n]);
    }
    sum4(sums[0], sums[1], sums[2], sums[3], to);
  }
};

// Some tokens of one head, made up to a multiple of four by tokens that do nothing.
struct Together {
  std::int64_t tokens;  // a multiple of four
  std::int64_t kept;    // tokens that the new state knows of
  const KeyRows& q;     // zero rows past the last token
  const KeyRows& k;
  float a[kTokenBlock][kTokenBlock];  // beta[t] D[t][s] k[t].k[s], s < t
  float p[kTokenBlock][kTokenBlock];  // D[t][s] q[t].k[s], s <= t
  float beta[kTokenBlock];
  float from_start[kTokenBlock];  // E[t]
  float decay;                    // of the state that is kept, after `commit` tokens
  float to_commit[kTokenBlock];   // decay of token t's part in it, of those that are kept

  // `qs` and `ks` are zero from `count` to the next multiple of four.
  Together(const Token* given, std::int64_t count, std::int64_t commit, const TokenProducts& known,
           const KeyRows& qs, const KeyRows& ks)
      : tokens((count + 3) / 4 * 4), kept(commit), q(qs), k(ks), decay(1.0f) {
    float passed[kTokenBlock] = {};  // D[t]
    float start = 1.0f;
    for (std::int64_t t = 0; t < count; ++t) {
      beta[t] = given[t].beta;
      start *= given[t].alpha;
      from_start[t] = start;
      for (std::int64_t s = 0; s < t; ++s) passed[s] *= given[t].alpha;
      passed[t] = 1.0f;
      for (std::int64_t s = 0; s < t; ++s) a[t][s] = beta[t] * passed[s] * known.kk[t][s];
      for (std::int64_t s = 0; s <= t; ++s) p[t][s] = passed[s] * known.qk[t][s];
      if (t + 1 == commit) {
        decay = start;
        for (std::int64_t s = 0; s < commit; ++s) to_commit[s] = passed[s];
      }
    }
  }
  // Keys that the new state does not know of have weights of zero there, which only numbers heed.
  static bool takes(const KeyRows& keys, std::int64_t commit, std::int64_t count,
                    std::int64_t width) {
    F sum = zero();
    for (std::int64_t t = commit; t < count; ++t) {
      for (std::int64_t i = 0; i < width; i += kLanes) sum = fma(zero(), load(keys[t] + i), sum);
    }
    float sums[4];
    sum4(sum, sum, sum, sum, sums);
    return sums[0] == 0.0f;
  }

  // ks and qs: [tokens, stride], products with the state. v, o: [tokens], from the group's first
  // value row on. ks becomes the weights of the keys in the new state.
  void solve(std::int64_t count, std::int64_t stride, float* ks, const float* qs,
             const float (*v)[kMaxDim], float (*o)[kMaxDim], std::int64_t real,
             std::int64_t first) const {
    for (std::int64_t j = 0; j < count; j += kLanes) {
      const std::int64_t n = count - j;
      F u[kTokenBlock];
      for (std::int64_t t = 0; t < real; ++t) {
        const F value = load_some(v[t] + first + j, n);
        const F seen = mul(set(from_start[t]), load(ks + t * stride + j));
        u[t] = mul(set(beta[t]), sub(value, seen));
        for (std::int64_t s = 0; s < t; ++s) u[t] = fma(set(-a[t][s]), u[s], u[t]);
        F result = mul(set(from_start[t]), load(qs + t * stride + j));
        for (std::int64_t s = 0; s <= t; ++s) result = fma(set(p[t][s]), u[s], result);
        store_some(result, o[t] + first + j, n);
      }
      for (std::int64_t t = 0; t < tokens; ++t) {
        store(t < kept ? mul(set(to_commit[t]), u[t]) : zero(), ks + t * stride + j);
      }
    }
  }
};

// [V, K]: `count` rows, a multiple of 4 up to 16.
struct TogetherOfK {
  static constexpr std::int64_t kStride = 16;  // between tokens in products and weights

  // Products of four keys with all rows. Meanwhile half of the next group is fetched.
  template <bool kTail, class S>
  static HYLA_INLINE void products(const KeyRows& keys, std::int64_t first, std::int64_t K,
                                   std::int64_t count, const S* from, std::int64_t stride,
                                   const S* ahead, float* to) {
    for (std::int64_t r = 0; r < count; r += 4) {
      F sums[4][4];  // [key][row]
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) sums[n][m] = zero();
      }
      for (std::int64_t i = 0; i < K; i += kLanes) {
        const std::int64_t lanes = kTail ? K - i : kLanes;
        F s[4];
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) s[m] = load_some(from + (r + m) * stride + i, lanes);
        prefetch<2 * kLanes>(ahead + r / 2 * K + 2 * i);
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) {
          const F key = load(keys[first + n] + i);
#pragma GCC unroll 4
          for (int m = 0; m < 4; ++m) sums[n][m] = fma(key, s[m], sums[n][m]);
        }
      }
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        sum4(sums[n][0], sums[n][1], sums[n][2], sums[n][3], to + (first + n) * kStride + r);
      }
    }
  }
  template <class S>
  static HYLA_INLINE void all_products(const Together& t, std::int64_t K, std::int64_t count,
                                       const S* from, std::int64_t stride, const S* next, float* ks,
                                       float* qs) {
    for (std::int64_t token = 0; token < t.tokens; token += 4) {
      if (K % kLanes == 0) {
        products<false>(t.k, token, K, count, from, stride, next, ks);
        products<false>(t.q, token, K, count, from, stride, next + count / 2 * stride, qs);
      } else {
        products<true>(t.k, token, K, count, from, stride, next, ks);
        products<true>(t.q, token, K, count, from, stride, next + count / 2 * stride, qs);
      }
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count,
                                 const S* from, std::int64_t from_stride, S* to,
                                 std::int64_t to_stride, const float* weights) {
    if (t.tokens == 4) {
      update_rows<4>(t, K, count, from, from_stride, to, to_stride, weights);
    } else {
      update_rows<8>(t, K, count, from, from_stride, to, to_stride, weights);
    }
  }
  template <int kTokens, class S>
  static HYLA_INLINE void update_rows(const Together& t, std::int64_t K, std::int64_t count,
                                      const S* from, std::int64_t from_stride, S* to,
                                      std::int64_t to_stride, const float* weights) {
    const F decay = set(t.decay);
    for (std::int64_t r = 0; r < count; r += 4) {
      F w[kTokens][4];
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) w[token][m] = set(weights[token * kStride + r + m]);
      }
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
};

// [K, V]: `count` columns.
struct TogetherOfV {
  static constexpr std::int64_t kStride = 8 * kLanes;

  template <class S>
  static HYLA_INLINE void all_products(const Together& t, std::int64_t K, std::int64_t count,
                                       const S* from, std::int64_t stride, const S*, float* ks,
                                       float* qs) {
    for (std::int64_t token = 0; token < t.tokens; token += 4) {
      products(t.k, token, K, count, from, stride, ks);
      products(t.q, token, K, count, from, stride, qs);
    }
  }
  template <class S>
  static HYLA_INLINE void products(const KeyRows& keys, std::int64_t first, std::int64_t K,
                                   std::int64_t count, const S* from, std::int64_t stride,
                                   float* to) {
    std::int64_t j = 0;
    for (; j + 2 * kLanes <= count; j += 2 * kLanes) {
      columns<2>(keys, first, K, kLanes, from + j, stride, to + j);
    }
    for (; j < count; j += kLanes) columns<1>(keys, first, K, count - j, from + j, stride, to + j);
  }
  template <int kCount, class S>
  static HYLA_INLINE void columns(const KeyRows& keys, std::int64_t first, std::int64_t K,
                                  std::int64_t lanes, const S* from, std::int64_t stride,
                                  float* to) {
    F sums[4][kCount];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      for (int c = 0; c < kCount; ++c) sums[n][c] = zero();
    }
    for (std::int64_t i = 0; i < K; ++i) {
      F s[kCount];
      for (int c = 0; c < kCount; ++c) s[c] = load_some(from + i * stride + c * kLanes, lanes);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const F key = set(keys[first + n][i]);
        for (int c = 0; c < kCount; ++c) sums[n][c] = fma(key, s[c], sums[n][c]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      for (int c = 0; c < kCount; ++c) store(sums[n][c], to + (first + n) * kStride + c * kLanes);
    }
  }

  template <class S>
  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count,
                                 const S* from, std::int64_t from_stride, S* to,
                                 std::int64_t to_stride, const float* weights) {
    const F decay = set(t.decay);
    for (std::int64_t i = 0; i < K; ++i) {
      for (std::int64_t j = 0; j < count; j += kLanes) {
        F s = mul(decay, load_some(from + i * from_stride + j, count - j));
        for (std::int64_t token = 0; token < t.tokens; ++token) {
          s = fma(set(t.k[token][i]), load(weights + token * kStride + j), s);
        }
        store_some(s, to + i * to_stride + j, count - j);
      }
    }
  }
};

// A group of value rows on its way: its products with the state, then the weights of the keys.
template <class Way>
struct TogetherGroup {
  alignas(64) float ks[kTokenBlock * Way::kStride], qs[kTokenBlock * Way::kStride];
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOGETHER_H_
