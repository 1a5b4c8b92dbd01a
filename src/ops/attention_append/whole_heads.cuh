// Two heads of a token whose keys are rotated whole and whose lanes are all busy: what the
// converter does, without its questions.
#pragma once

#include "ops/attention_append/converter.cuh"

namespace hyla::attention::appending {

// The larger magnitude of each of two pairs of numbers; its sign says nothing.
template <class In>
__device__ __forceinline__ std::uint32_t larger_magnitudes(std::uint32_t x, std::uint32_t y) {
  std::uint32_t result;
  if constexpr (std::is_same_v<In, __half>) {
    asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  } else {
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  }
  return result;
}

// Where a lane's chunks of two heads go.
template <class Out>
struct WholeTarget {
  Out* values[2];
  float* scale;  // of the lane's head: the first two lanes of a token store one each
  bool goes, goes_scale;
};

// A lane has the chunks c and c + kLanes of two heads, [head][chunk] in shared memory, 32 lanes side
// by side.
template <class In, class Out, int kLanes>
struct WholeHeads {
  using Target = WholeTarget<Out>;

  static __device__ __forceinline__ void load(const uint4* from, std::uint32_t (&words)[2][8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 x = from[32 * i];
      std::uint32_t* to = words[i / 2] + 4 * (i % 2);
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
  }
  static __device__ __forceinline__ void unpack(const std::uint32_t* words, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = number<In>(words[i / 2], i % 2);
  }
  static __device__ __forceinline__ void store(const Target& to, int h, int c, uint2 bytes) {
    if (to.goes) *reinterpret_cast<uint2*>(to.values[h] + 8 * kLanes * c) = bytes;
  }
  static __device__ __forceinline__ void store_scale(const Target& to, float first, float second) {
    const bool odd = (threadIdx.x & 1) != 0;
    if (to.goes_scale) *to.scale = odd ? second : first;
  }

  // False where a chunk must be divided exactly.
  static __device__ __forceinline__ bool convert(const uint4* from, const Target& to) {
    std::uint32_t words[2][8];
    load(from, words);
    std::uint32_t largest[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = larger_magnitudes<In>(words[h][i], words[h][i + 4]);
      largest[h] = larger_magnitudes<In>(larger_magnitudes<In>(pairs[0], pairs[1]),
                                         larger_magnitudes<In>(pairs[2], pairs[3]));
    }
    std::uint32_t heads = larger_magnitudes<In>(__byte_perm(largest[0], largest[1], 0x5410),
                                                __byte_perm(largest[0], largest[1], 0x7632));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      heads = larger_magnitudes<In>(heads, __shfl_xor_sync(0xffffffffu, heads, step));
    }
    heads &= 0x7fff7fffu;
    const Divisor<Out> by[2] = {Divisor<Out>(number<In>(heads, 0)),
                                Divisor<Out>(number<In>(heads, 1))};
    store_scale(to, by[0].scale, by[1].scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[8];
      unpack(words[i / 2] + 4 * (i % 2), x);
      store(to, i / 2, i % 2, by[i / 2].divide(x));
    }
    return by[0].plain & by[1].plain;
  }

  // Rotated before, in all lanes that are `sound`. False where numbers are too small to be sure.
  static __device__ __forceinline__ bool convert_turned(const uint4* from, const uint4* tables,
                                                        bool interleaved, bool sound,
                                                        const Target& to) {
    float y[2][2][8];
    turn_heads(from, tables, interleaved, y);
    float largest[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) largest[h] = fmaxf(largest_of(y[h][0]), largest_of(y[h][1]));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], step));
      }
    }
    const float scales[2] = {scale_of<Out>(largest[0]), scale_of<Out>(largest[1])};
    store_scale(to, scales[0], scales[1]);
    std::uint32_t unsure[2][4];  // bytes that are not 0
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float inverse = arch::reciprocal_fast(scales[i / 2]);
      const uint2 bytes = products<Out>(y[i / 2][i % 2], inverse * kAbove);
      const uint2 other = products<Out>(y[i / 2][i % 2], inverse * kBelow);
      store(to, i / 2, i % 2, bytes);
      unsure[i / 2][2 * (i % 2)] = bytes.x ^ other.x;
      unsure[i / 2][2 * (i % 2) + 1] = bytes.y ^ other.y;
    }
    const auto is_unsure = [&](int h) {
      return sound & ((unsure[h][0] | unsure[h][1] | unsure[h][2] | unsure[h][3]) != 0);
    };
    if (__any_sync(0xffffffffu, is_unsure(0) | is_unsure(1))) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (!__any_sync(0xffffffffu, is_unsure(h))) continue;
        unsigned largest_ones = 0, unsure_ones = 0;  // a bit a number
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const bool is = fabsf(y[h][i / 8][i % 8]) * (1 + 0x1p-21f) >= largest[h];
          largest_ones |= is ? 1u << i : 0u;
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) unsure_ones |= bits_of_bytes(unsure[h][w]) << (4 * w);
        const OwnPairs pairs{reinterpret_cast<const char*>(from + 64 * h),
                             reinterpret_cast<const char*>(tables), interleaved};
        settle(pairs, largest_ones, unsure_ones, h, to);
      }
    }
    return (scales[0] >= kLeastScale) & (scales[1] >= kLeastScale);
  }

 private:
  static __device__ __forceinline__ void turn_heads(const uint4* from, const uint4* tables,
                                                    bool interleaved, float (&y)[2][2][8]) {
    std::uint32_t words[2][8];
    load(from, words);
    const Turns turns(tables);
    const auto turn_both = [&](bool pairs) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x[2][8];
        unpack(words[h], x[0]), unpack(words[h] + 4, x[1]);
        turn(x, y[h], true, turns, pairs, [](float p, float q, float c, float s) {
          const float product = q * s;
          return fmaf(p, c, -product) - fmaf(q, s, -product);
        });
      }
    };
    if (interleaved) {
      turn_both(true);
    } else {
      turn_both(false);
    }
  }
  static __device__ __forceinline__ float largest_of(const float (&x)[8]) {
    float largest = fmaxf(fabsf(x[0]), fabsf(x[1]));
#pragma unroll
    for (int i = 2; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
  }
  // Which bytes are not 0.
  static __device__ __forceinline__ unsigned bits_of_bytes(std::uint32_t x) {
    const std::uint32_t high = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
    return high * 0x00204081u >> 28;
  }

  // A lane's numbers of a head and their columns of cos and sin, where they lie in shared memory.
  struct OwnPairs {
    const char *data, *tables;
    bool interleaved;

    __device__ __forceinline__ float number_of(int index) const {
      return load_number(data + 512 * (index >> 3) + 2 * (index & 7));
    }
    __device__ __forceinline__ Exact turned(int index) const {
      const int column = interleaved ? index >> 1 : index & 7;
      const bool second = interleaved ? (index & 1) != 0 : index >= 8;
      const char* at = tables + 512 * (column >> 2) + 4 * (column & 3);
      const float c = *reinterpret_cast<const float*>(at);
      const float s = *reinterpret_cast<const float*>(at + 1024);
      const float p = number_of(index), q = number_of(interleaved ? index ^ 1 : index ^ 8);
      const Exact sum = exact_products(p, c, -q, second ? -s : s);
      const float plain = second ? p * c + q * s : p * c - q * s;
      return fabsf(sum.high) < __builtin_huge_valf() ? sum : Exact{plain, 0.0f};
    }

   private:
    static __device__ __forceinline__ float load_number(const char* from) {
      if constexpr (std::is_same_v<In, __half>) {
        return __half2float(*reinterpret_cast<const __half*>(from));
      } else {
        return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(from));
      }
    }
  };

  // The scale of a head and those of its numbers that are not sure, as exactly as
  // Converter::turn_exactly. `largest_ones`: the lane's that may be the largest of all. One after
  // the other: there is hardly ever more than one of either, and what counts is how long the other
  // warps have to wait for this one in the end.
  static __device__ __forceinline__ void settle(const OwnPairs& pairs, unsigned largest_ones,
                                                unsigned unsure_ones, int h, const Target& to) {
    const unsigned had = __ballot_sync(0xffffffffu, largest_ones != 0);
    float high = 0.0f, own_low = -__builtin_huge_valf();
#pragma unroll 1
    for (; largest_ones != 0; largest_ones &= largest_ones - 1) {
      const Exact x = pairs.turned(__ffs(static_cast<int>(largest_ones)) - 1);
      const float size = fabsf(x.high), rest = copysignf(1.0f, x.high) * x.low;
      if (size > high || (size == high && rest > own_low)) high = size, own_low = rest;
    }
    // Of the lanes of a run that had some, one after the other too.
    const unsigned run = ((1u << kLanes) - 1) << (threadIdx.x & 31 & ~(kLanes - 1));
    float top = 0.0f, low = -__builtin_huge_valf();
#pragma unroll 1
    for (unsigned lanes = had & run; __any_sync(0xffffffffu, lanes != 0); lanes &= lanes - 1) {
      const int from = __ffs(static_cast<int>(lanes)) - 1;
      const float size = __shfl_sync(0xffffffffu, high, from);
      const float rest = __shfl_sync(0xffffffffu, own_low, from);
      if (lanes != 0 && (size > top || (size == top && rest > low))) top = size, low = rest;
    }
    const float scale = scale_of<Out>(top, low);
    if (to.goes_scale && static_cast<int>(threadIdx.x & 1) == h) *to.scale = scale;
    const float inverse = arch::reciprocal_fast(scale);
#pragma unroll 1
    for (; unsure_ones != 0; unsure_ones &= unsure_ones - 1) {
      const int index = __ffs(static_cast<int>(unsure_ones)) - 1;
      const std::uint32_t byte = divide_exactly<Out>(pairs.turned(index), scale, inverse);
      if (to.goes) {
        auto* at = reinterpret_cast<unsigned char*>(to.values[h]);
        at[8 * kLanes * (index >> 3) + (index & 7)] = static_cast<unsigned char>(byte);
      }
    }
  }
};

}  // namespace hyla::attention::appending
