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

// q or k of one head, normalised when asked, with a zero tail.
inline void load_key(const gdn::Problem& p, const core::TokenView& view, std::int64_t row,
                     std::int64_t token, std::int64_t head, float* to) {
  const std::int64_t width = padded(p.K);
  for (std::int64_t i = p.K; i < width; ++i) to[i] = 0.0f;
  load_values(view, view.offset(row, token, head), p.K, to);
  if (p.l2norm) {
    const float squares = dot(to, to, width);
    scale_by(to, 1.0f / __builtin_sqrtf(squares + static_cast<float>(p.l2norm_eps)), width);
  }
}

inline Token load_token(const gdn::Problem& p, std::int64_t row, std::int64_t token,
                        std::int64_t head, float* q, float* k) {
  load_key(p, p.q, row, token, head / (p.heads / p.q_heads), q);
  load_key(p, p.k, row, token, head / (p.heads / p.k_heads), k);
  const std::int64_t width = padded(p.K);
  scale_by(q, static_cast<float>(p.scale), width);
  return {alpha_of(p.gate, row, token, head), beta_of(p.beta, row, token, head), dot(q, k, width),
          q, k};
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOKENS_H_
