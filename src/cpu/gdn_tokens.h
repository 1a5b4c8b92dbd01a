// What a token brings to one head: q, k, v as floats, its gates as numbers. Compiled for each
// target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_TOKENS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TOKENS_H_
#undef HYLA_CPU_GDN_TOKENS_H_
#else
#define HYLA_CPU_GDN_TOKENS_H_
#endif

#include "cpu/simd.h"
#include "cpu/values.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

struct Token {
  float alpha, beta;
  float qk;        // q . k
  const float* q;  // [K], zero up to a multiple of kLanes, scaled
  const float* k;
  // The same as bfloat16 in the caller's memory, to be multiplied by the factors; null where q and
  // k are no such thing.
  const bfloat16* q_pairs;
  const bfloat16* k_pairs;
  float q_factor, k_factor;
};

inline float dot(const float* a, const float* b, std::int64_t padded) {
  F sums = zero();
  for (std::int64_t i = 0; i < padded; i += kLanes) sums = fma(load(a + i), load(b + i), sums);
  return sum(sums);
}

// `count` elements from (row, token, head, dim) on, as floats.
inline void load_values(const core::TokenView& view, std::int64_t offset, std::int64_t count,
                        float* to) {
  if (view.dim_stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = load_number(view.data, view.dtype, offset + i * view.dim_stride);
    }
    return;
  }
  switch (view.dtype) {
    case DType::kBFloat16:
      return load_all(static_cast<const bfloat16*>(view.data) + offset, count, to);
    case DType::kFloat16:
      return load_all(static_cast<const float16*>(view.data) + offset, count, to);
    default:
      return load_all(static_cast<const float*>(view.data) + offset, count, to);
  }
}

inline void store_values(const core::TokenView& view, std::int64_t offset, std::int64_t count,
                         const float* from) {
  if (view.dim_stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      store_number(view.data, view.dtype, offset + i * view.dim_stride, from[i]);
    }
    return;
  }
  switch (view.dtype) {
    case DType::kBFloat16:
      return store_all(from, count, static_cast<bfloat16*>(view.data) + offset);
    case DType::kFloat16:
      return store_all(from, count, static_cast<float16*>(view.data) + offset);
    default:
      return store_all(from, count, static_cast<float*>(view.data) + offset);
  }
}

inline std::int64_t padded(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// q and k of a head as floats with a zero tail, normalised when asked, q scaled; their product.
// They may stand where they go. Both norms come before anything waits for them.
template <class T>
HYLA_INLINE void scale_token(const gdn::Problem& p, const T* from_q, const T* from_k, float* q,
                             float* k, Token& t) {
  t.q_factor = static_cast<float>(p.scale);
  t.k_factor = 1.0f;
  if (p.l2norm) {
    F qq = zero(), kk = zero();
    for (std::int64_t i = 0; i < p.K; i += kLanes) {
      const F a = load_some(from_q + i, p.K - i), b = load_some(from_k + i, p.K - i);
      qq = fma(a, a, qq);
      kk = fma(b, b, kk);
    }
    alignas(64) float squares[4];
    sum4(qq, kk, qq, kk, squares);
    const auto eps = static_cast<float>(p.l2norm_eps);
    t.q_factor *= 1.0f / __builtin_sqrtf(squares[0] + eps);
    t.k_factor = 1.0f / __builtin_sqrtf(squares[1] + eps);
  }
  const F q_factor = set(t.q_factor), k_factor = set(t.k_factor);
  F qk = zero();
  for (std::int64_t i = 0; i < p.K; i += kLanes) {
    const F a = mul(q_factor, load_some(from_q + i, p.K - i));
    const F b = mul(k_factor, load_some(from_k + i, p.K - i));
    store(a, q + i);
    store(b, k + i);
    qk = fma(a, b, qk);
  }
  t.qk = sum(qk);
  t.q = q;
  t.k = k;
}

// All of a token but its gates, for the heads that share q_head and k_head.
inline Token load_token(const gdn::Problem& p, std::int64_t row, std::int64_t token,
                        std::int64_t q_head, std::int64_t k_head, float* q, float* k) {
  const std::int64_t q_offset = p.q.offset(row, token, q_head);
  const std::int64_t k_offset = p.k.offset(row, token, k_head);
  Token t{};
  if (p.q.dtype == DType::kBFloat16 && p.q.dim_stride == 1 && p.k.dim_stride == 1) {
    t.q_pairs = static_cast<const bfloat16*>(p.q.data) + q_offset;
    t.k_pairs = static_cast<const bfloat16*>(p.k.data) + k_offset;
    scale_token(p, t.q_pairs, t.k_pairs, q, k, t);
  } else {
    load_values(p.q, q_offset, p.K, q);
    load_values(p.k, k_offset, p.K, k);
    scale_token(p, q, k, q, k, t);
  }
  return t;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOKENS_H_
