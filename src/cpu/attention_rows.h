// Rows of keys and values on their way into products, as they lie in the cache or in converted
// lines. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_ROWS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_ROWS_H_
#undef HYLA_CPU_ATTENTION_ROWS_H_
#else
#define HYLA_CPU_ATTENTION_ROWS_H_
#endif

#include "cpu/gemm.h"
#include "cpu/kv_lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr int kValueVectors = kLanes >= 8 ? 2 : 1;
constexpr std::int64_t kVectorBytes = kLanes * 4;
constexpr std::int64_t kLine = 64;  // bytes of a cache line

// At most one scale for each key.
inline bool one_each(const TensorView& scales) {
  return !scales.present() || scales.shape[scales.rank - 1] == 1;
}
inline std::int64_t head_bytes(const TensorView& view) {
  return view.strides[view.rank - 2] * static_cast<std::int64_t>(size_of(view.dtype));
}
inline std::int64_t row_bytes(const TensorView& view) {
  return view.shape[view.rank - 1] * static_cast<std::int64_t>(size_of(view.dtype));
}

// Numbers that meet floats, of any dtype that a vector can be loaded from.
template <class T>
struct RowsAsFloats {
  static constexpr std::int64_t kBytes = sizeof(T);  // of a number
  static constexpr int kParts = 4 / sizeof(T);       // vectors of what a vector holds in the cache
  static constexpr bool kSplit = false;              // even numbers of two vectors, then odd ones

  static HYLA_INLINE void keys(const char* row, F (&to)[kParts]) { load_vectors(row, to); }
  template <int kCount>
  static HYLA_INLINE void values(const char* row, F (&to)[kCount]) {
    load_vectors(row, to);
  }

 private:
  template <int kCount>
  static HYLA_INLINE void load_vectors(const char* row, F (&to)[kCount]) {
#pragma GCC unroll 4
    for (int n = 0; n < kCount; ++n) to[n] = load(reinterpret_cast<const T*>(row) + n * kLanes);
  }
};
using FloatRows = RowsAsFloats<float>;
using HalfRows = RowsAsFloats<float16>;
#if HYLA_TARGET_HAS_WORDS
// bfloat16 split into even and odd numbers: an instruction for each vector of floats.
struct SplitRows {
  static constexpr std::int64_t kBytes = 2;
  static constexpr int kParts = 2;
  static constexpr bool kSplit = true;

  static HYLA_INLINE void keys(const char* row, F (&to)[kParts]) {
    split_words(load_words(row), to[0], to[1]);
  }
  static HYLA_INLINE void values(const char* row, F (&to)[kValueVectors]) { keys(row, to); }
#if HYLA_TARGET_HAS_AVX512
  // Half a vector of each of two keys.
  static HYLA_INLINE void keys_of_two(const char* lower, const char* upper, F (&to)[kParts]) {
    split_words(load_half_words(lower, upper), to[0], to[1]);
  }
#endif
};
using BfloatRows = SplitRows;
#else
using BfloatRows = RowsAsFloats<bfloat16>;
#endif

#if HYLA_TARGET_HAS_PAIRS
// Of bfloat16, in pairs.
struct WordRows {
  static constexpr std::int64_t kBytes = 2;
  static constexpr int kParts = 1;
  static constexpr bool kSplit = false;

  static HYLA_INLINE void keys(const char* row, P (&to)[kParts]) { to[0] = load_pairs(row); }
  // Pairs of the values of two keys.
  static HYLA_INLINE void values(const char* even, const char* odd, P (&to)[kValueVectors]) {
    interleave_pairs(load_pairs(even), load_pairs(odd), to[0], to[1]);
  }
};

// Of bytes that become bfloat16, exactly. Their scales go to logits and weights.
template <class Bytes>
struct ByteRows {
  static constexpr std::int64_t kBytes = 1;
  static constexpr int kParts = 2;
  static constexpr bool kSplit = false;

  static HYLA_INLINE void keys(const char* row, P (&to)[kParts]) {
    Bytes::widen(load_pairs(row), to[0], to[1]);
  }
  static HYLA_INLINE void values(const char* even, const char* odd, P (&to)[kValueVectors]) {
    Bytes::widen(alternate_halves(load_halves(even, odd)), to[0], to[1]);
  }
};

// The scales of a row, one for each `run` numbers.
struct RunScales {
  const float* first;
  std::int64_t stride, run;
  float at(std::int64_t number) const { return first[number / run * stride]; }
};

// Bytes times their scales, rounded to bfloat16.
template <class Bytes>
inline void scale_bytes(const char* from, std::int64_t count, const RunScales& scales, float* to) {
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
    P first, second;
    widen_in_order<Bytes>(from + i, first, second);
    store_pairs(times(first, set(scales.at(i))), to + i / 2);
    store_pairs(times(second, set(scales.at(i + 2 * kLanes))), to + i / 2 + kLanes);
  }
}
#endif

// What products of an Op take as it lies in the cache: calls take.template operator()<Rows>() of
// the rows of a dtype, none for others.
template <class Op>
struct RowsOf {
  using Converted = FloatRows;
  template <class Take>
  static bool of(DType dtype, const Take& take) {
    switch (dtype) {
      case DType::kFloat32:
        return take.template operator()<FloatRows>();
      case DType::kBFloat16:
        return take.template operator()<BfloatRows>();
      default:
        break;
    }
    if constexpr (kLanes >= 8) {  // instructions for these
      if (dtype == DType::kFloat16) return take.template operator()<HalfRows>();
      if (dtype == DType::kInt8) return take.template operator()<RowsAsFloats<std::int8_t>>();
      return take.template operator()<RowsAsFloats<float8_e4m3>>();
    }
    return false;
  }
};
#if HYLA_TARGET_HAS_PAIRS
template <>
struct RowsOf<Pairs> {
  using Converted = WordRows;
  template <class Take>
  static bool of(DType dtype, const Take& take) {
    switch (dtype) {
      case DType::kBFloat16:
        return take.template operator()<WordRows>();
      case DType::kFloat8E4M3:
        return take.template operator()<ByteRows<E4m3Bytes>>();
      case DType::kInt8:
        return take.template operator()<ByteRows<Int8Bytes>>();
      default:
        return false;
    }
  }
};
#endif

// Bytes come as the first eight of every sixteen, then the others: queries follow. A vector has
// four times eight.
inline void order_as_bytes(float* elements, std::int64_t count) {
  constexpr std::int64_t kEight = kLanes / 4;
  alignas(64) float first[kLanes], second[kLanes];
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    for (std::int64_t n = 0; n < 4; ++n) {
      std::copy_n(elements + i + 2 * n * kEight, kEight, first + n * kEight);
      std::copy_n(elements + i + (2 * n + 1) * kEight, kEight, second + n * kEight);
    }
    std::copy_n(first, kLanes, elements + i);
    std::copy_n(second, kLanes, elements + i + kLanes);
  }
}

// Of every 2 `half` elements the even ones, then the odd ones.
inline void order_split(float* elements, std::int64_t count, int half) {
  float odd[kLanes];
  for (std::int64_t i = 0; i < count; i += 2 * half) {
    for (int n = 0; n < half; ++n) odd[n] = elements[i + 2 * n + 1];
    for (int n = 1; n < half; ++n) elements[i + n] = elements[i + 2 * n];
    std::copy_n(odd, half, elements + i + half);
  }
}

// Rows from an address of each on.
struct RowsAt {
  const char* const* rows;
  std::int64_t offset;
  HYLA_INLINE const char* operator[](std::int64_t key) const { return rows[key] + offset; }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_ROWS_H_
