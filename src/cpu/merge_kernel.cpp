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

// What each side counts in some rows; a side that saw no key does not, whatever it holds.
struct MergeShares {
  static constexpr int kRows = 64;
  alignas(64) float a[kRows], b[kRows], lse[kRows];
  bool has_a[kRows], has_b[kRows];

  // a and b begin as the logarithms of both sides.
  void find() {
    alignas(64) float smaller[kRows];
    for (int i = 0; i < kRows; ++i) {
      has_a[i] = !(std::fabs(a[i]) > kLargest);
      has_b[i] = !(std::fabs(b[i]) > kLargest);
      smaller[i] = has_a[i] && has_b[i] ? -std::fabs(a[i] - b[i]) : 0.0f;
    }
    for (int i = 0; i < kRows; i += kLanes) store(exp(load(smaller + i)), smaller + i);
    for (int i = 0; i < kRows; ++i) {
      const bool both = has_a[i] && has_b[i], a_first = has_a[i] && (!has_b[i] || a[i] >= b[i]);
      // exp forgets that a number was NaN.
      const float s = both ? smaller[i] + (a[i] * 0.0f + b[i] * 0.0f) : 0.0f;
      const float larger = 1.0f / (1.0f + s);
      const float top = has_a[i] || has_b[i] ? (a_first ? a[i] : b[i]) : -__builtin_inff();
      a[i] = a_first ? larger : s * larger;
      b[i] = a_first ? s * larger : larger;
      lse[i] = top + log_1p(s);
    }
  }

 private:
  static constexpr float kLargest = 3.40282347e38f;

  // ln(1 + s) of s from 0 to 1, within 2e-7: 2 artanh(s / (2 + s)).
  static HYLA_INLINE float log_1p(float s) {
    const float z = s / (2.0f + s), w = z * z;
    float sum = 1.0f / 15;
    for (const float term : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f}) {
      sum = sum * w + term;
    }
    return 2.0f * z * sum;
  }
};

// Elements converted at a time: they stay in the first cache.
constexpr std::int64_t kMergeBlock = 512;

// A row of (token, head), and what its sides count; of an empty one nothing is read.
struct MergeRow {
  std::int64_t token, head;
  bool has_a, has_b;
  float a, b;
};

// Of any mixture of dtypes, in blocks of floats.
inline void merge_blocks(const attention::MergeProblem& p, const MergeRow& row) {
  alignas(64) float a[kMergeBlock], b[kMergeBlock];
  for (std::int64_t d = 0; d < p.dim; d += kMergeBlock) {
    const std::int64_t count = std::min(kMergeBlock, p.dim - d);
    const auto read = [&](bool has, const core::TokenView& from, float* to) {
      if (has) {
        load_line(from.data, from.dtype, from.offset(0, row.token, row.head, d), 1, count, to);
      } else {
        std::fill(to, to + count, 0.0f);
      }
    };
    read(row.has_a, p.a, a);
    read(row.has_b, p.b, b);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const std::int64_t n = count - i;
      store_some(fma(load_some(a + i, n), set(row.a), mul(load_some(b + i, n), set(row.b))), a + i,
                 n);
    }
    store_line(a, count, p.out.data, p.out.dtype, p.out.offset(0, row.token, row.head, d), 1);
  }
}

// Of one dtype: straight from memory to memory, where both sides count in whole vectors.
template <class T>
void merge_row(const attention::MergeProblem& p, const MergeRow& row) {
  const T* a = static_cast<const T*>(p.a.data) + p.a.offset(0, row.token, row.head);
  const T* b = static_cast<const T*>(p.b.data) + p.b.offset(0, row.token, row.head);
  T* out = static_cast<T*>(p.out.data) + p.out.offset(0, row.token, row.head);
  if (row.has_a != row.has_b) {
    const T* only = row.has_a ? a : b;
    if (only != out) std::memcpy(out, only, static_cast<std::size_t>(p.dim) * sizeof(T));
    return;
  }
  if (!row.has_a || p.dim % kLanes != 0) return merge_blocks(p, row);
  const F of_a = set(row.a), of_b = set(row.b);
  for (std::int64_t d = 0; d < p.dim; d += kLanes) {
    store(fma(load(a + d), of_a, mul(load(b + d), of_b)), out + d);
  }
}

void merge_rows(const attention::MergeProblem& p, Range rows) {
  void (*merge)(const attention::MergeProblem&, const MergeRow&) =
      p.out.dtype != p.a.dtype          ? merge_blocks
      : p.out.dtype == DType::kBFloat16 ? merge_row<bfloat16>
      : p.out.dtype == DType::kFloat16  ? merge_row<float16>
                                        : merge_row<float>;
  const auto logarithm = [](const core::TokenView& of, std::int64_t token,
                            std::int64_t head) -> float& {
    return static_cast<float*>(of.data)[of.offset(0, token, head)];
  };
  MergeShares shares = {};
  std::int64_t token = rows.begin / p.heads, head = rows.begin % p.heads;
  const auto next = [&](std::int64_t& t, std::int64_t& h) {
    if (++h == p.heads) h = 0, ++t;
  };
  for (std::int64_t first = rows.begin; first < rows.end; first += MergeShares::kRows) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(MergeShares::kRows, rows.end - first));
    std::int64_t t = token, h = head;
    for (int i = 0; i < count; ++i, next(t, h)) {
      shares.a[i] = logarithm(p.a_lse, t, h);
      shares.b[i] = logarithm(p.b_lse, t, h);
    }
    shares.find();
    for (int i = 0; i < count; ++i, next(token, head)) {
      merge(p, {token, head, shares.has_a[i], shares.has_b[i], shares.a[i], shares.b[i]});
      if (p.lse.present()) logarithm(p.lse, token, head) = shares.lse[i];
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
