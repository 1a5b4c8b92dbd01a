// Matrix products by the tiles of AMX: 16 lines of 64 bytes each.
#pragma once

#include <cstdint>

#ifdef HYLA_OTHER_CPUS
#include "cpu/amx_emulated.h"
#else
#include "cpu/amx_tiles.h"
#endif

namespace hyla::cpu {

// Null where tiles of bfloat16 may be used, otherwise why not. Asks the system for them, once.
const char* amx_refuses();

#if defined(__x86_64__)
namespace amx {

inline constexpr std::int64_t kRows = 16;   // of a tile
inline constexpr std::int64_t kWidth = 16;  // of 32 bits: floats, or pairs of bfloat16

// While it lives, a thread's tiles are 16 lines of 64 bytes, or of the shapes that are said.
class Scope {
 public:
  Scope() {
    const Shape whole{16, 64};
    configure({whole, whole, whole, whole, whole, whole, whole, whole});
  }
  explicit Scope(const Shape (&tiles)[8]) { configure(tiles); }
  ~Scope() { release(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

// A matrix of 32-bit elements: pairs of bfloat16 along the summed dimension, or floats.
struct Matrix {
  float* at;
  std::int64_t stride;
  float* tile(std::int64_t row, std::int64_t column) const { return at + row * stride + column; }
};

// kM by kN tiles of C from (row, column) on; tiles 0 to 3 are sums, 4 and 5 of A, 6 and 7 of B.
template <bool kAdded, int kM, int kN>
inline void multiply_block(const Matrix& a, const Matrix& b, const Matrix& c, std::int64_t row,
                           std::int64_t column, std::int64_t steps) {
  const auto each = [&](auto&& body) __attribute__((always_inline)) {
    body.template operator()<0, 0>();
    if constexpr (kN == 2) body.template operator()<0, 1>();
    if constexpr (kM == 2) body.template operator()<1, 0>();
    if constexpr (kM == 2 && kN == 2) body.template operator()<1, 1>();
  };
  each([&]<int m, int n>() __attribute__((always_inline)) {
    if constexpr (kAdded) {
      load<2 * m + n>(c.tile(row + m * kRows, column + n * kWidth), c.stride);
    } else {
      zero<2 * m + n>();
    }
  });
  for (std::int64_t step = 0; step < steps; step += kWidth) {
    load<4>(a.tile(row, step), a.stride);
    load<6>(b.tile(step, column), b.stride);
    add_product<0, 4, 6>();
    if constexpr (kN == 2) {
      load<7>(b.tile(step, column + kWidth), b.stride);
      add_product<1, 4, 7>();
    }
    if constexpr (kM == 2) {
      load<5>(a.tile(row + kRows, step), a.stride);
      add_product<2, 5, 6>();
      if constexpr (kN == 2) add_product<3, 5, 7>();
    }
  }
  each([&]<int m, int n>() __attribute__((always_inline)) {
    store<2 * m + n>(c.tile(row + m * kRows, column + n * kWidth), c.stride);
  });
}

// C = A B or C += A B, all sizes multiples of 16. `steps`: pairs that are summed over.
template <bool kAdded>
inline void multiply(const Matrix& a, std::int64_t rows, const Matrix& b, std::int64_t steps,
                     std::int64_t columns, const Matrix& c) {
  std::int64_t row = 0;
  for (; row + 2 * kRows <= rows; row += 2 * kRows) {
    std::int64_t column = 0;
    for (; column + 2 * kWidth <= columns; column += 2 * kWidth) {
      multiply_block<kAdded, 2, 2>(a, b, c, row, column, steps);
    }
    if (column < columns) multiply_block<kAdded, 2, 1>(a, b, c, row, column, steps);
  }
  if (row == rows) return;
  std::int64_t column = 0;
  for (; column + 2 * kWidth <= columns; column += 2 * kWidth) {
    multiply_block<kAdded, 1, 2>(a, b, c, row, column, steps);
  }
  if (column < columns) multiply_block<kAdded, 1, 1>(a, b, c, row, column, steps);
}

}  // namespace amx
#endif

}  // namespace hyla::cpu
