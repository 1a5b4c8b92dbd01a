// What a token brings to one head: q, k, v as floats, its gates as numbers. Compiled for each target
// (see foreach_target.h).
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

inline void scale_by(float* x, float factor, std::int64_t padded) {
  for (std::int64_t i = 0; i < padded; i += kLanes) store(mul(load(x + i), set(factor)), x + i);
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

// q or k of one head, normalised when asked, with a zero tail. Returns the factor of the norm.
inline float load_key(const gdn::Problem& p, const core::TokenView& view, std::int64_t offset,
                      float* to) {
  const std::int64_t width = padded(p.K);
  for (std::int64_t i = p.K; i < width; ++i) to[i] = 0.0f;
  load_values(view, offset, p.K, to);
  if (!p.l2norm) return 1.0f;
  const float squares = dot(to, to, width);
  const float factor = 1.0f / __builtin_sqrtf(squares + static_cast<float>(p.l2norm_eps));
  scale_by(to, factor, width);
  return factor;
}

// All of a token but its gates, for the heads that share q_head and k_head.
inline Token load_token(const gdn::Problem& p, std::int64_t row, std::int64_t token,
                        std::int64_t q_head, std::int64_t k_head, float* q, float* k) {
  const std::int64_t q_offset = p.q.offset(row, token, q_head);
  const std::int64_t k_offset = p.k.offset(row, token, k_head);
  const auto scale = static_cast<float>(p.scale);
  Token t{};
  t.q_factor = scale * load_key(p, p.q, q_offset, q);
  t.k_factor = load_key(p, p.k, k_offset, k);
  const std::int64_t width = padded(p.K);
  scale_by(q, scale, width);
  t.qk = dot(q, k, width);
  t.q = q;
  t.k = k;
  if (p.q.dtype == DType::kBFloat16 && p.q.dim_stride == 1 && p.k.dim_stride == 1) {
    t.q_pairs = static_cast<const bfloat16*>(p.q.data) + q_offset;
    t.k_pairs = static_cast<const bfloat16*>(p.k.data) + k_offset;
  }
  return t;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOKENS_H_
