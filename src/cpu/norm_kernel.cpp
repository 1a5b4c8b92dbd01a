#include <algorithm>

#include "cpu/norm.h"
#include "cpu/values.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/norm_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Elements converted at a time: they stay in the first cache.
constexpr std::int64_t kNormBlock = 512;

inline float sum_of_squares(const float* x, std::int64_t count) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  int next = 0;
  for (std::int64_t i = 0; i < count; i += kLanes, next = (next + 1) % 4) {
    const F a = i + kLanes <= count ? load(x + i) : load_n(x + i, static_cast<int>(count - i));
    sums[next] = fma(a, a, sums[next]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// x * factor * weight * activation(z)
HYLA_INLINE F gated(F x, F z, F weight, F factor, bool silu) {
  const F scaled = mul(mul(x, factor), mul(weight, sigmoid(z)));
  // silu(z) = z sigmoid(z), and 0 at -inf
  return silu ? mul(scaled, max(set(-3.4e38f), z)) : scaled;
}

void run_norm(const norm::GatedRmsProblem& p, Range rows) {
  alignas(64) float x[kNormBlock], z[kNormBlock], weight[kNormBlock];
  const norm::GateView& gate = p.gate;
  const bool silu = gate.gate == norm::Activation::kSilu;
  const bool one_block = p.D <= kNormBlock;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int64_t token = i / p.heads, head = i % p.heads;
    float squares = 0;
    for (std::int64_t d = 0; d < p.D; d += kNormBlock) {
      const std::int64_t count = std::min(kNormBlock, p.D - d);
      load_line(p.x.data, p.x.dtype, p.x.offset(0, token, head, d), 1, count, x);
      squares += sum_of_squares(x, count);
    }
    const float mean = squares / static_cast<float>(p.D);
    const F factor = set(1.0f / __builtin_sqrtf(mean + static_cast<float>(gate.eps)));
    for (std::int64_t d = 0; d < p.D; d += kNormBlock) {
      const std::int64_t count = std::min(kNormBlock, p.D - d);
      if (!one_block) load_line(p.x.data, p.x.dtype, p.x.offset(0, token, head, d), 1, count, x);
      if (!one_block || i == rows.begin) {
        load_line(gate.weight.data, gate.weight.dtype, d * gate.weight.stride, gate.weight.stride,
                  count, weight);
      }
      load_line(gate.z.data, gate.z.dtype, gate.z.offset(0, token, head, d), 1, count, z);
      std::int64_t j = 0;
      for (; j + kLanes <= count; j += kLanes) {
        store(gated(load(x + j), load(z + j), load(weight + j), factor, silu), x + j);
      }
      if (j < count) {
        const int n = static_cast<int>(count - j);
        store_n(gated(load_n(x + j, n), load_n(z + j, n), load_n(weight + j, n), factor, silu),
                x + j, n);
      }
      store_line(x, count, p.out.data, p.out.dtype, p.out.offset(0, token, head, d), 1);
    }
  }
}

extern const NormKernels kNormKernels;
const NormKernels kNormKernels = {run_norm};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const NormKernels& norm_kernels(Target target) { return HYLA_TARGET_SELECT(kNormKernels); }
}  // namespace hyla::cpu
#endif
