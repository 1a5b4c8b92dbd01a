#include <algorithm>

#include "cpu/norm.h"
#include "cpu/values.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/norm_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/lines.h"
#include "cpu/quick_sigmoid.h"

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

// activation(z), in place
template <bool kQuick, int kCount>
HYLA_INLINE void activate(F (&z)[kCount], bool silu) {
  if constexpr (kQuick) {
    silu ? quick_sigmoids<true>(z) : quick_sigmoids<false>(z);
  } else {
    for (int i = 0; i < kCount; ++i) {
      // silu(z) = z sigmoid(z), and 0 at -inf
      z[i] = silu ? mul(max(set(-3.4e38f), z[i]), sigmoid(z[i])) : sigmoid(z[i]);
    }
  }
}
HYLA_INLINE F gated(F x, F weight, F factor, F gate) {
  return mul(mul(x, factor), mul(weight, gate));
}

inline F norm_factor(const norm::GatedRmsProblem& p, float squares) {
  const float mean = squares / static_cast<float>(p.D);
  return set(1.0f / __builtin_sqrtf(mean + static_cast<float>(p.gate.eps)));
}

// Rows of any length and mixture of dtypes, in blocks of floats.
template <bool kQuick>
void norm_blocks(const norm::GatedRmsProblem& p, Range rows) {
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
    const F factor = norm_factor(p, squares);
    for (std::int64_t d = 0; d < p.D; d += kNormBlock) {
      const std::int64_t count = std::min(kNormBlock, p.D - d);
      if (!one_block) load_line(p.x.data, p.x.dtype, p.x.offset(0, token, head, d), 1, count, x);
      if (!one_block || i == rows.begin) {
        load_line(gate.weight.data, gate.weight.dtype, d * gate.weight.stride, gate.weight.stride,
                  count, weight);
      }
      load_line(gate.z.data, gate.z.dtype, gate.z.offset(0, token, head, d), 1, count, z);
      for (std::int64_t j = 0; j < count; j += kLanes) {
        const std::int64_t n = count - j;
        F gates[] = {load_some(z + j, n)};
        activate<kQuick>(gates, silu);
        store_some(gated(load_some(x + j, n), load_some(weight + j, n), factor, gates[0]), x + j,
                   n);
      }
      store_line(x, count, p.out.data, p.out.dtype, p.out.offset(0, token, head, d), 1);
    }
  }
}

// Rows of kTogether vectors or a multiple, of one 16-bit dtype: straight from memory to memory.
constexpr int kTogether = 4;

template <class T>
void norm_rows(const norm::GatedRmsProblem& p, Range rows) {
  alignas(64) float weight[kNormBlock];
  const norm::GateView& gate = p.gate;
  const bool silu = gate.gate == norm::Activation::kSilu;
  load_line(gate.weight.data, gate.weight.dtype, 0, gate.weight.stride, p.D, weight);
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int64_t token = i / p.heads, head = i % p.heads;
    const T* x = static_cast<const T*>(p.x.data) + p.x.offset(0, token, head);
    const T* z = static_cast<const T*>(gate.z.data) + gate.z.offset(0, token, head);
    T* out = static_cast<T*>(p.out.data) + p.out.offset(0, token, head);
    F sums[kTogether] = {zero(), zero(), zero(), zero()};
    for (std::int64_t d = 0; d < p.D; d += kTogether * kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) {
        const F a = load(x + d + j * kLanes);
        sums[j] = fma(a, a, sums[j]);
      }
    }
    const F factor = norm_factor(p, sum(add(add(sums[0], sums[1]), add(sums[2], sums[3]))));
    for (std::int64_t d = 0; d < p.D; d += kTogether * kLanes) {
      F gates[kTogether];
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) gates[j] = load(z + d + j * kLanes);
      activate<true>(gates, silu);
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) {
        const std::int64_t at = d + j * kLanes;
        store(gated(load(x + at), load(weight + at), factor, gates[j]), out + at);
      }
    }
  }
}

void run_norm(const norm::GatedRmsProblem& p, Range rows) {
  const DType dtype = p.out.dtype;
  if (dtype == DType::kFloat32) return norm_blocks<false>(p, rows);
  const bool straight = p.x.dtype == dtype && p.gate.z.dtype == dtype && p.D <= kNormBlock &&
                        p.D % (kTogether * kLanes) == 0;
  if (!straight) return norm_blocks<true>(p, rows);
  dtype == DType::kBFloat16 ? norm_rows<bfloat16>(p, rows) : norm_rows<float16>(p, rows);
}

void quick_gates(bool silu, float* z, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    F gates[] = {load_some(z + i, count - i)};
    activate<true>(gates, silu);
    store_some(gates[0], z + i, count - i);
  }
}

extern const NormKernels kNormKernels;
const NormKernels kNormKernels = {run_norm, quick_gates};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const NormKernels& norm_kernels(Target target) { return HYLA_TARGET_SELECT(kNormKernels); }
}  // namespace hyla::cpu
#endif
