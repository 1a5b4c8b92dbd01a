#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/merge.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/merge_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// What each side counts; a side that saw no key does not, whatever it holds.
struct MergeShares {
  float a = 0, b = 0, lse = -__builtin_inff();
  bool has_a, has_b;

  MergeShares(float a_lse, float b_lse)
      : has_a(!__builtin_isinf(a_lse)), has_b(!__builtin_isinf(b_lse)) {
    if (!has_a && !has_b) return;
    if (!has_a || !has_b) {
      (has_a ? a : b) = 1, lse = has_a ? a_lse : b_lse;
      return;
    }
    const float smaller = std::exp(-std::fabs(a_lse - b_lse)), larger = 1.0f / (1.0f + smaller);
    const bool a_first = a_lse >= b_lse;
    a = a_first ? larger : smaller * larger;
    b = a_first ? smaller * larger : larger;
    lse = (a_first ? a_lse : b_lse) + std::log1p(smaller);
  }
};

// Elements converted at a time: they stay in the first cache.
constexpr std::int64_t kMergeBlock = 512;

// Of any mixture of dtypes, in blocks of floats.
inline void merge_blocks(const attention::MergeProblem& p, std::int64_t token, std::int64_t head,
                         const MergeShares& share) {
  alignas(64) float a[kMergeBlock], b[kMergeBlock];
  for (std::int64_t d = 0; d < p.dim; d += kMergeBlock) {
    const std::int64_t count = std::min(kMergeBlock, p.dim - d);
    const auto read = [&](bool has, const core::TokenView& from, float* to) {
      if (has) {
        load_line(from.data, from.dtype, from.offset(0, token, head, d), 1, count, to);
      } else {
        std::fill(to, to + count, 0.0f);
      }
    };
    read(share.has_a, p.a, a);
    read(share.has_b, p.b, b);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const std::int64_t n = count - i;
      const F sum = fma(load_some(a + i, n), set(share.a), mul(load_some(b + i, n), set(share.b)));
      store_some(sum, a + i, n);
    }
    store_line(a, count, p.out.data, p.out.dtype, p.out.offset(0, token, head, d), 1);
  }
}

// Rows of whole vectors, of one dtype, that both sides have: straight from memory to memory.
template <class T>
HYLA_INLINE void merge_row(const attention::MergeProblem& p, std::int64_t token, std::int64_t head,
                           const MergeShares& share) {
  const T* a = static_cast<const T*>(p.a.data) + p.a.offset(0, token, head);
  const T* b = static_cast<const T*>(p.b.data) + p.b.offset(0, token, head);
  T* out = static_cast<T*>(p.out.data) + p.out.offset(0, token, head);
  const F of_a = set(share.a), of_b = set(share.b);
  for (std::int64_t d = 0; d < p.dim; d += kLanes) {
    store(fma(load(a + d), of_a, mul(load(b + d), of_b)), out + d);
  }
}

void merge_rows(const attention::MergeProblem& p, Range rows) {
  const bool straight = p.out.dtype == p.a.dtype && p.dim % kLanes == 0;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int64_t token = i / p.heads, head = i % p.heads;
    const auto logarithm = [&](const core::TokenView& of) {
      return static_cast<const float*>(of.data)[of.offset(0, token, head)];
    };
    const MergeShares share(logarithm(p.a_lse), logarithm(p.b_lse));
    if (!straight || !share.has_a || !share.has_b) {
      merge_blocks(p, token, head, share);
    } else if (p.out.dtype == DType::kBFloat16) {
      merge_row<bfloat16>(p, token, head, share);
    } else if (p.out.dtype == DType::kFloat16) {
      merge_row<float16>(p, token, head, share);
    } else {
      merge_row<float>(p, token, head, share);
    }
    if (p.lse.present()) {
      static_cast<float*>(p.lse.data)[p.lse.offset(0, token, head)] = share.lse;
    }
  }
}

extern const MergeKernels kMergeKernels;
const MergeKernels kMergeKernels = {merge_rows};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const MergeKernels& merge_kernels(Target target) { return HYLA_TARGET_SELECT(kMergeKernels); }
}  // namespace hyla::cpu
#endif
