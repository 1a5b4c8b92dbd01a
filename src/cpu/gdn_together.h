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

#include "cpu/gdn_state_lines.h"
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

// The same keys and queries for AMX, see gdn_together_by_tiles.h.
struct KeyTiles {
  alignas(64) float pairs[64][16];
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
  float q_factor[kTokenBlock] = {}, k_factor[kTokenBlock] = {};  // of q and k as they came

  // `qs` and `ks` are zero from `count` to the next multiple of four.
  Together(const Token* given, std::int64_t count, std::int64_t commit, const TokenProducts& known,
           const KeyRows& qs, const KeyRows& ks)
      : tokens((count + 3) / 4 * 4), kept(commit), q(qs), k(ks), decay(1.0f) {
    float passed[kTokenBlock] = {};  // D[t]
    float start = 1.0f;
    for (std::int64_t t = 0; t < count; ++t) {
      beta[t] = given[t].beta;
      q_factor[t] = given[t].q_factor;
      k_factor[t] = given[t].k_factor;
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
  // value row on. ks becomes the weights of the keys in the new state, which is of S.
  template <class S>
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
        const F weight = t < kept ? mul(set(to_commit[t]), u[t]) : zero();
        store(LineOf<S>::clean(weight), ks + t * stride + j);
      }
    }
  }
};

// What the update of a group asks for: a group that comes soon, into the first cache, and one of the
// next head, or null.
template <class S>
struct Ahead {
  const S* soon;
  const S* far;
  HYLA_INLINE void ask(std::int64_t offset) const {
    prefetch<2 * kLanes, true>(soon + offset);
    if (far != nullptr && LineOf<S>::asked_far(far + offset)) prefetch<2 * kLanes>(far + offset);
  }
};

// A group of value rows on its way: its products with the state, then the weights of the keys; and
// what Way keeps meanwhile.
template <class Way, class S>
struct TogetherGroup {
  alignas(64) float ks[kTokenBlock * Way::kGroup], qs[kTokenBlock * Way::kGroup];
  alignas(64) float kept[Way::template kept_floats<S>()];
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOGETHER_H_
