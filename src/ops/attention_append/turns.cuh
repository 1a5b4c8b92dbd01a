// What a lane has of a head, and its rotation.
#pragma once

#include "arch/cp_async_if.cuh"
#include "ops/attention_append/rows.h"

namespace hyla::attention::appending {

// Which chunks of a head are a lane's: those that are rotated come first, a pair of them as far
// apart as a rotation of halves has its numbers; then the others.
struct LanePair {
  int first, distance;
  bool inside, turned;

  __device__ __forceinline__ LanePair(const Half& of, int lane)
      : first(lane & ((1 << of.lane_shift) - 1)),
        inside(first < of.chunks / 2),
        turned(first < of.turned) {
    distance = turned ? of.turned : of.chunks / 2 - of.turned;
    if (!turned) first += of.turned;
  }
};

// Eight columns of the tables: of the pairs (i, i + R/2) those of both chunks, of the pairs
// (2i, 2i + 1) four of each chunk.
struct Turns {
  float cos[8], sin[8];

  static __device__ __forceinline__ void ask(const RowsArguments& a, const LanePair& at,
                                             int position, bool there, std::uint32_t to) {
    const int column = a.interleaved ? 4 * at.first : 8 * at.first;
    const int next = a.interleaved ? 4 * at.distance : 4;
    const float *c = a.cos + position * a.cos_stride + column,
                *s = a.sin + position * a.sin_stride + column;
    constexpr auto kL1 = arch::Caches::kL1;
    arch::copy_16_if<0, kL1>(there, to, c);
    arch::copy_16_if<0, kL1>(there, to + 512, c + next);
    arch::copy_16_if<0, kL1>(there, to + 2 * 512, s);
    arch::copy_16_if<0, kL1>(there, to + 3 * 512, s + next);
  }
  Turns() = default;
  // Of positions that the tables have; others are not used.
  __device__ __forceinline__ void load(const RowsArguments& a, const LanePair& at, int position) {
    const bool there = at.turned && position >= 0 && position < a.positions;
    const int column = a.interleaved ? 4 * at.first : 8 * at.first;
    const int next = a.interleaved ? 4 * at.distance : 4;
    const float *c = a.cos + position * a.cos_stride + column,
                *s = a.sin + position * a.sin_stride + column;
    const auto four = [&](const float* from, float* to) {
      device::Pack<float, 4> pack;
      pack.load_if(there, from);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(pack.words[i]);
    };
    four(c, cos), four(c + next, cos + 4), four(s, sin), four(s + next, sin + 4);
  }
  __device__ __forceinline__ explicit Turns(const uint4* from) {
    const auto four = [&](int place, float* to) {
      const uint4 x = from[32 * place];
      to[0] = __uint_as_float(x.x), to[1] = __uint_as_float(x.y);
      to[2] = __uint_as_float(x.z), to[3] = __uint_as_float(x.w);
    };
    four(0, cos), four(1, cos + 4), four(2, sin), four(3, sin + 4);
  }
};

// What becomes of the pair (x, y): rotate(x, y, c, s) gives x c - y s, and with (y, x, c, -s)
// y c + x s.
template <class Number, class Rotate>
__device__ __forceinline__ void turn(const float (&x)[2][8], Number (&to)[2][8], bool turns,
                                     const Turns& tables, bool interleaved, Rotate rotate) {
  if (!turns) {
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i / 8][i % 8] = Number{x[i / 8][i % 8]};
  } else if (interleaved) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int chunk = i / 4, even = 2 * (i % 4);
      const float re = x[chunk][even], im = x[chunk][even + 1];
      to[chunk][even] = rotate(re, im, tables.cos[i], tables.sin[i]);
      to[chunk][even + 1] = rotate(im, re, tables.cos[i], -tables.sin[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float re = x[0][i], im = x[1][i];
      to[0][i] = rotate(re, im, tables.cos[i], tables.sin[i]);
      to[1][i] = rotate(im, re, tables.cos[i], -tables.sin[i]);
    }
  }
}

}  // namespace hyla::attention::appending
