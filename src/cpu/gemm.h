// Tiles of small matrix products in registers. Compiled for each target (see foreach_target.h).
//
// An element is 32 bits: a float, or a pair of bfloat16 along the summed dimension. A tile is
// kTileRows rows of A by kTileVectors vectors of columns of B; sums run over the steps in order, so
// an element's bits do not depend on the tile it falls into.
#if defined(HYLA_CPU_GEMM_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GEMM_H_
#undef HYLA_CPU_GEMM_H_
#else
#define HYLA_CPU_GEMM_H_
#endif

#include "cpu/amx.h"
#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr int kTileRows = 4;
// With 16 registers two vectors would be 8 sums: no more than two pipes of products have under way.
constexpr int kTileVectors = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 2;

struct Singles {
  using Vector = F;
  static constexpr bool kTiles = false;
  static constexpr int kSummed = 1;  // products a step
  static HYLA_INLINE F load_b(const float* from) { return load(from); }
  static HYLA_INLINE F load_a(const float* from) { return set(*from); }
  static HYLA_INLINE F add_product(F sum, F a, F b) { return fma(a, b, sum); }
};

#if HYLA_TARGET_HAS_PAIRS
// Pairs lie in arrays of float, as bits.
struct Pairs {
  using Vector = P;
  static constexpr bool kTiles = false;
  static constexpr int kSummed = 2;
  static HYLA_INLINE P load_b(const float* from) { return load_pairs(from); }
  static HYLA_INLINE P load_a(const float* from) {
    std::uint32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return set_pair(pair);
  }
  static HYLA_INLINE F add_product(F sum, P a, P b) { return dot_pairs(sum, a, b); }
  static HYLA_INLINE void store_pair(F even, F odd, float* to) {
    store_pairs(pack_pairs(even, odd), to);
  }
};

// The same in memory, but large products go by AMX (cpu/amx.h), which wants 16 pairs of each.
struct AmxPairs : Pairs {
  static constexpr bool kTiles = true;
};
#endif

// A: element (row, step) at a[row * row_stride + step * step_stride].
struct Left {
  const float* a;
  std::int64_t row_stride, step_stride;
};

// sums += A B for the tile whose first row is `row`; b points to its first column.
template <class Op, int kVectors>
HYLA_INLINE void add_tile(const Left& left, std::int64_t row, const float* b, std::int64_t b_stride,
                          std::int64_t steps, F (&sums)[kTileRows][kVectors]) {
  const float* a = left.a + row * left.row_stride;
  for (std::int64_t step = 0; step < steps; ++step) {
    typename Op::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) columns[n] = Op::load_b(b + step * b_stride + n * kLanes);
#pragma GCC unroll 4
    for (int m = 0; m < kTileRows; ++m) {
      const auto x = Op::load_a(a + m * left.row_stride + step * left.step_stride);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sums[m][n] = Op::add_product(sums[m][n], x, columns[n]);
    }
  }
}

template <int kVectors>
HYLA_INLINE void clear(F (&sums)[kTileRows][kVectors]) {
#pragma GCC unroll 4
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sums[m][n] = zero();
  }
}
template <int kVectors>
HYLA_INLINE void load_tile(const float* from, std::int64_t stride, F (&sums)[kTileRows][kVectors]) {
#pragma GCC unroll 4
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sums[m][n] = load(from + m * stride + n * kLanes);
  }
}
template <int kVectors>
HYLA_INLINE void store_tile(const F (&sums)[kTileRows][kVectors], float* to, std::int64_t stride) {
#pragma GCC unroll 4
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) store(sums[m][n], to + m * stride + n * kLanes);
  }
}

// Calls Body<kVectors>::tile(arguments..., column) over all columns, a multiple of kLanes.
template <template <int> class Body, class... Arguments>
HYLA_INLINE void for_columns(std::int64_t columns, const Arguments&... arguments) {
  std::int64_t n = 0;
  // Two tiles of two rather than one of three and one of one.
  const std::int64_t least = kTileVectors == 3 ? 5 * kLanes : kTileVectors * kLanes;
  for (; columns - n >= least || columns - n == kTileVectors * kLanes; n += kTileVectors * kLanes) {
    Body<kTileVectors>::tile(arguments..., n);
  }
  if constexpr (kTileVectors == 3) {
    for (; columns - n >= 2 * kLanes; n += 2 * kLanes) Body<2>::tile(arguments..., n);
  }
  for (; n < columns; n += kLanes) Body<1>::tile(arguments..., n);
}

// C = A B, or C += A B: `rows` a multiple of kTileRows, `columns` of kLanes.
template <class Op, bool kAdded = false>
struct Product {
  template <int kVectors>
  struct Tile {
    static HYLA_INLINE void tile(const Left& left, std::int64_t row, const float* b,
                                 std::int64_t b_stride, std::int64_t steps, float* c,
                                 std::int64_t c_stride, std::int64_t column) {
      F sums[kTileRows][kVectors];
      if constexpr (kAdded) {
        load_tile(c + row * c_stride + column, c_stride, sums);
      } else {
        clear(sums);
      }
      add_tile<Op>(left, row, b + column, b_stride, steps, sums);
      store_tile(sums, c + row * c_stride + column, c_stride);
    }
  };
};
template <class Op>
void multiply(const Left& left, std::int64_t rows, const float* b, std::int64_t b_stride,
              std::int64_t steps, std::int64_t columns, float* c, std::int64_t c_stride) {
  for (std::int64_t row = 0; row < rows; row += kTileRows) {
    for_columns<Product<Op>::template Tile>(columns, left, row, b, b_stride, steps, c, c_stride);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GEMM_H_
