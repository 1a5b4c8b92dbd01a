// The gated norm behind an output. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_EPILOGUE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_EPILOGUE_H_
#undef HYLA_CPU_GDN_EPILOGUE_H_
#else
#define HYLA_CPU_GDN_EPILOGUE_H_
#endif

#include "cpu/gdn_tokens.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// x * rsqrt(mean(x^2) + eps) * weight * activation(z); x has room for whole vectors.
inline void gated_norm(const norm::GateView& norm, std::int64_t row, std::int64_t token,
                       std::int64_t head, std::int64_t count, float* x) {
  alignas(64) float z[256], weight[256];  // the largest head dim
  const std::int64_t width = padded(count);
  for (std::int64_t i = count; i < width; ++i) x[i] = z[i] = weight[i] = 0.0f;
  load_values(norm.z, norm.z.offset(row, token, head), count, z);
  const core::TokenView line{
      const_cast<void*>(norm.weight.data), norm.weight.dtype, 0, 0, 0, norm.weight.stride};
  load_values(line, 0, count, weight);
  const float mean = dot(x, x, width) / static_cast<float>(count);
  const F factor = set(1.0f / __builtin_sqrtf(mean + static_cast<float>(norm.eps)));
  for (std::int64_t i = 0; i < width; i += kLanes) {
    const F gate = sigmoid(load(z + i));
    const F scaled = mul(mul(load(x + i), factor), mul(load(weight + i), gate));
    // silu(z) = z sigmoid(z), and 0 at -inf
    const F bounded = max(set(-3.4e38f), load(z + i));
    store(norm.gate == norm::Activation::kSilu ? mul(scaled, bounded) : scaled, x + i);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_EPILOGUE_H_
