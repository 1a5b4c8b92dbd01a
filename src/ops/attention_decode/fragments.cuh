// Products of a unit: 16 keys against 8 query rows, with the keys on the side of 16.
//
//   scores   S^T [16 keys, 8 rows]  = K [16, D] Q^T            fragments of K by ldmatrix
//   values   O^T [D, 8 rows]       += V^T [D, 16] P^T [16, 8]   V by a transposing ldmatrix
//
// One-byte values become float16, which holds e4m3 and int8 exactly; both products then run over
// a permuted order: of D in the scores, where Q follows, and of D in O^T, undone when it is stored.
#pragma once

#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

template <class Stored>
struct Numbers {
  using Math = Stored;
};
template <>
struct Numbers<E4m3> {
  using Math = __half;
  // Four stored bytes as two times two numbers. Halves of a register need no shift this way.
  static __device__ __forceinline__ void pairs(std::uint32_t bytes, std::uint32_t& low,
                                               std::uint32_t& high) {
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
  }
};
template <>
struct Numbers<Int8> {
  using Math = __half;
  // 0x6400 | u is 1024 + u for a byte u; x + 128 is unsigned.
  static __device__ __forceinline__ void pairs(std::uint32_t bytes, std::uint32_t& low,
                                               std::uint32_t& high) {
    const std::uint32_t biased = bytes ^ 0x80808080u;
    low = number(__byte_perm(biased, 0x64646464u, 0x4140));
    high = number(__byte_perm(biased, 0x64646464u, 0x4342));
  }

 private:
  static __device__ __forceinline__ std::uint32_t number(std::uint32_t biased) {
    const __half2 numbers =
        __hsub2(reinterpret_cast<const __half2&>(biased), __half2half2(__ushort_as_half(0x6480)));
    return reinterpret_cast<const std::uint32_t&>(numbers);
  }
};

// Position in the head of element 0 of word `j` of a lane's query fragment for 16 elements.
template <class Shape>
__device__ __forceinline__ int query_element(int lane, int j) {
  return Shape::kQuantised ? 4 * (lane & 3) + 2 * j : 2 * (lane & 3) + 8 * j;
}

// Position in 16 values of the first (second: + value_distance) of a lane's two in O^T.
template <class Shape>
__device__ __forceinline__ int value_element(int lane) {
  return Shape::kQuantised ? 2 * (lane >> 2) : lane >> 2;
}
template <class Shape>
inline constexpr int kValueDistance = Shape::kQuantised ? 1 : 8;

template <class Shape>
using QueryFragments = std::uint32_t[Shape::D / 16][2];
template <class Shape>
using ValueFragments = float[Shape::D / 16][4];

// A lane's row of a swizzled tile, at its first or second 16-byte chunk; chunks 2 * i further on
// differ by constants.
__device__ __forceinline__ std::uint32_t first_chunk(std::uint32_t row, int second, int lane) {
  return row + ((second ^ (lane & 7)) << 4);
}
__device__ __forceinline__ std::uint32_t chunk_of(std::uint32_t first, int i) {
  return (first ^ ((i & 3) << 5)) + (i >> 2) * 1024;
}

template <class Shape>
__device__ __forceinline__ void scores(std::uint32_t tile, const QueryFragments<Shape>& q,
                                       float (&s)[4], int lane) {
  using Kind = Numbers<typename Shape::Stored>;
  const std::uint32_t row = first_chunk(
      tile + ((lane >> 3) & 1) * Shape::kGroupBytes + (lane & 7) * 128, lane >> 4, lane);
  constexpr int kChains = 4;  // products that do not wait for each other
  float sums[kChains][4] = {};
#pragma unroll
  for (int i = 0; i < Shape::kRowBytes / 32; ++i) {
    std::uint32_t k[4];
    arch::load_matrices(k, chunk_of(row, i));
    if constexpr (!Shape::kQuantised) {
      arch::mma_16x8x16<typename Kind::Math>(sums[i % kChains], k, q[i][0], q[i][1]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4];
        Kind::pairs(k[2 * half], a[0], a[2]);
        Kind::pairs(k[2 * half + 1], a[1], a[3]);
        arch::mma_16x8x16<typename Kind::Math>(sums[(2 * i + half) % kChains], a,
                                               q[2 * i + half][0], q[2 * i + half][1]);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) s[e] = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
}

template <class Shape>
__device__ __forceinline__ void add_values(std::uint32_t tile, std::uint32_t p0, std::uint32_t p1,
                                           ValueFragments<Shape>& o, int lane) {
  using Kind = Numbers<typename Shape::Stored>;
  const std::uint32_t row = first_chunk(tile + (lane >> 4) * Shape::kGroupBytes + (lane & 7) * 128,
                                        (lane >> 3) & 1, lane);
#pragma unroll
  for (int i = 0; i < Shape::kRowBytes / 32; ++i) {
    std::uint32_t v[4];
    arch::load_matrices_transposed(v, chunk_of(row, i));
    if constexpr (!Shape::kQuantised) {
      arch::mma_16x8x16<typename Kind::Math>(o[i], v, p0, p1);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // {key 0: d, d + 1; key 1: d, d + 1} becomes {d: keys 0, 1; d + 1: keys 0, 1}.
        std::uint32_t a[4];
        Kind::pairs(__byte_perm(v[half], 0, 0x3120), a[0], a[1]);
        Kind::pairs(__byte_perm(v[half + 2], 0, 0x3120), a[2], a[3]);
        arch::mma_16x8x16<typename Kind::Math>(o[2 * i + half], a, p0, p1);
      }
    }
  }
}

}  // namespace hyla::attention::decode
