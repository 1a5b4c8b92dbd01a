// Appends rows at the speed of the memory: a warp has some lines of 32 chunks of 16 bytes, asks for
// all of them, finds meanwhile where they go, and then rotates, quantises and stores them in
// registers. Float32 arithmetic.
#pragma once

#include <cuda_fp8.h>

#include "arch/exponential.cuh"
#include "arch/grid_dependency.cuh"
#include "device/divider.h"
#include "device/dtype.cuh"
#include "ops/attention_append/find_token.cuh"
#include "problem/attention.h"

namespace hyla::attention::appending {

inline constexpr int kRowWarps = 4;

// As In and Out: what is stored without a change, whatever it is.
struct Bytes {};

// Of a warp, of keys and as many of values. Conversions wait for their own instructions more than
// for memory: fewer lines, and more warps.
inline constexpr int kMostLines = 4;
template <class Out>
inline constexpr int kLines = std::is_same_v<Out, Bytes> ? kMostLines : 2;
// Of a multiprocessor, as many as find registers.
template <class In, class Out>
inline constexpr int kCtas = std::is_same_v<Out, Bytes>   ? 5
                             : std::is_same_v<In, __half> ? 7
                                                          : 8;

// Keys or values. A chunk is 16 bytes of the input.
struct Half {
  const char* from = nullptr;
  std::int64_t token_bytes = 0, head_bytes = 0;
  CacheTensor to, scales;
  int chunks = 0;                // of a head
  int per_token = 0, total = 0;  // chunks
  int scale_shift = 0;           // log2 of the chunks that share a scale
  int size = 0;                  // bytes of an element of the cache
  device::Divider by_token, by_head;
};

struct RowsArguments {
  core::Sequences sequences;
  CachePlaces places;
  Half halves[2];
  bool paired = false;  // both halves have the same shape: a warp moves both
  int tokens = 0;       // of the input
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t cos_stride = 0, sin_stride = 0;
  int positions = 0, rotated_chunks = 0;  // of a head; cos and sin have 4 columns for each
  bool interleaved = false;
};

template <class Element>
using Eight = device::Pack<Element, 8>;

// A sum of two floats, the second beyond the precision of the first.
struct Exact {
  float high, low;
};

// a b + c d as exact as double would have it where few bits are kept: they must be the right ones.
template <bool kFewBits>
__device__ __forceinline__ Exact exact_products(float a, float b, float c, float d) {
  if constexpr (!kFewBits) return {fmaf(a, b, c * d), 0.0f};
  const float p = a * b, q = c * d;
  const float sum = p + q, other = sum - p;
  const float low = ((p - (sum - other)) + (q - other)) + (fmaf(a, b, -p) + fmaf(c, d, -q));
  const float high = sum + low;
  return {high, low - (high - sum)};
}

// Eight neighbours of a head, four columns of the tables for the pairs (2i, 2i + 1), or eight for
// the pairs (i, i + R/2), whose other half is half of the rotated chunks away. By a whole warp,
// without branches: the lines of a warp are under way together.
template <bool kFewBits, class Element>
__device__ __forceinline__ void rotate(Exact (&x)[8], const Eight<Element>& own,
                                       const RowsArguments& a, int position, int piece, int lane) {
  const bool rotates = piece < a.rotated_chunks && position >= 0 && position < a.positions;
  const int half = a.rotated_chunks / 2;
  const bool second = piece >= half;
  const std::int64_t at = rotates ? position : 0;
  const auto load = [&](const float* table, std::int64_t stride, int column) {
    return __ldg(reinterpret_cast<const float4*>(table + at * stride + column));
  };
  if (a.interleaved) {
    const int column = rotates ? 4 * piece : 0;
    const float4 c = load(a.cos, a.cos_stride, column), s = load(a.sin, a.sin_stride, column);
    const float cs[4] = {c.x, c.y, c.z, c.w}, sn[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float re = x[2 * i].high, im = x[2 * i + 1].high;
      if (!rotates) continue;
      x[2 * i] = exact_products<kFewBits>(re, cs[i], -im, sn[i]);
      x[2 * i + 1] = exact_products<kFewBits>(im, cs[i], re, sn[i]);
    }
    return;
  }
  const int column = rotates ? 8 * (second ? piece - half : piece) : 0;
  const float4 c0 = load(a.cos, a.cos_stride, column), c1 = load(a.cos, a.cos_stride, column + 4);
  const float4 s0 = load(a.sin, a.sin_stride, column), s1 = load(a.sin, a.sin_stride, column + 4);
  Eight<Element> other;
  const int partner = rotates ? (second ? lane - half : lane + half) : lane;
#pragma unroll
  for (int w = 0; w < 4; ++w) other.words[w] = __shfl_sync(0xffffffffu, own.words[w], partner);
  float y[8];
  other.unpack(y);
  const float cs[8] = {c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w};
  const float sn[8] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (!rotates) continue;
    x[i] = exact_products<kFewBits>(x[i].high, cs[i], y[i], second ? sn[i] : -sn[i]);
  }
}

template <class Out>
inline constexpr float kLargest = 448.0f;
template <>
inline constexpr float kLargest<std::int8_t> = 127.0f;

// Over the lanes of a run, a power of two.
__device__ __forceinline__ float largest_of_run(float largest, int lanes) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, step);
    largest = step < lanes ? fmaxf(largest, other) : largest;
  }
  return largest;
}

// The largest magnitude of a run over the largest number of Out, rounded once.
template <class Out, bool kRotated>
__device__ __forceinline__ float scale_of(const Exact (&x)[8], int lanes) {
  constexpr float kInverse = 1.0f / kLargest<Out>;
  float high = 0, low = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) high = fmaxf(high, fabsf(x[i].high));
  if (lanes == 32) {  // numbers that are not negative are ordered as their bits are
    high = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(high)));
  } else {
    high = largest_of_run(high, lanes);
  }
  if constexpr (kRotated) {
    low = -__builtin_huge_valf();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (fabsf(x[i].high) == high) low = fmaxf(low, copysignf(1.0f, x[i].high) * x[i].low);
    }
    low = largest_of_run(low, lanes);
  }
  const float about = high * kInverse;
  return fmaf(fmaf(-about, kLargest<Out>, high) + low, kInverse, about);
}

// x moved a little to where the rest lies, so that rounding it to few bits rounds their sum.
__device__ __forceinline__ float leaning(float x, float rest) {
  const int bits = __float_as_int(x), step = ((__float_as_int(rest) ^ bits) >> 31) | 1;
  return __int_as_float(rest != 0.0f ? bits + step : bits);
}

// x / scale, to be rounded to few bits. Where the quotient is close to a number with few bits, that
// number is taken and leans as the remainder does.
__device__ __forceinline__ float quotient(Exact x, float scale, float inverse) {
  const float few = __int_as_float((__float_as_int(x.high * inverse) + 8) & ~15);
  return leaning(few, fmaf(-few, scale, x.high) + x.low);
}

inline constexpr float kLeastScale = 0x1p-100f;

__device__ __forceinline__ void divide(Exact (&x)[8], float scale, float (&result)[8]) {
  if (scale < kLeastScale) {  // where the reciprocal could be infinite
    scale *= 0x1p100f;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = {x[i].high * 0x1p100f, x[i].low * 0x1p100f};
  }
  const float inverse = arch::reciprocal_fast(scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) result[i] = scale == 0.0f ? 0.0f : quotient(x[i], scale, inverse);
}

// Four numbers times a factor, rounded to the nearest. int8: adding 1.5 * 2^23 rounds to an
// integer, whose lowest byte is then that of the sum; the numbers are within its range.
template <class Out>
__device__ __forceinline__ std::uint32_t four_bytes(float a, float b, float c, float d,
                                                    float factor) {
  if constexpr (std::is_same_v<Out, std::int8_t>) {
    const auto bits = [&](float x) { return __float_as_uint(fmaf(x, factor, 12582912.0f)); };
    return __byte_perm(__byte_perm(bits(a), bits(b), 0x0040), __byte_perm(bits(c), bits(d), 0x0040),
                       0x5410);
  } else {
    const auto pair = [&](float x, float y) -> std::uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(x * factor, y * factor), __NV_SATFINITE,
                                      __NV_E4M3);
    };
    return pair(a, b) | pair(c, d) << 16;
  }
}
template <class Out>
__device__ __forceinline__ uint2 eight_bytes(const float (&x)[8], float factor) {
  return make_uint2(four_bytes<Out>(x[0], x[1], x[2], x[3], factor),
                    four_bytes<Out>(x[4], x[5], x[6], x[7], factor));
}

// The quotients lie between the products with two numbers around the reciprocal, whatever is lost
// on the way (2^-21.4 of them); what both are rounded to is right. False where they differ: close
// to a tie, a few in 10^5.
template <class Out>
__device__ __forceinline__ bool divide_fast(const Exact (&x)[8], float scale, uint2& result) {
  if (!(scale >= kLeastScale)) return false;
  const float inverse = arch::reciprocal_fast(scale);
  float high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) high[i] = x[i].high;
  result = eight_bytes<Out>(high, inverse * (1.0f + 0x1p-20f));
  const uint2 other = eight_bytes<Out>(high, inverse * (1.0f - 0x1p-20f));
  return ((result.x ^ other.x) | (result.y ^ other.y)) == 0;
}

template <class Out>
__device__ __forceinline__ uint2 divided(Exact (&x)[8], float scale) {
  uint2 result;
  if (divide_fast<Out>(x, scale, result)) return result;
  float quotients[8];
  divide(x, scale, quotients);
  return eight_bytes<Out>(quotients, 1.0f);
}

// As they are, saturating.
template <class Out>
__device__ __forceinline__ void store_eight(Out* to, float (&x)[8]) {
  if constexpr (sizeof(Out) == 1) {
    if constexpr (std::is_same_v<Out, std::int8_t>) {
#pragma unroll
      for (float& value : x) value = fminf(fmaxf(value, -127.0f), 127.0f);
    }
    *reinterpret_cast<uint2*>(to) = eight_bytes<Out>(x, 1.0f);
  } else {
    Eight<Out> pack;
    pack.pack(x);
    pack.store(to);
  }
}

struct Chunk {
  int token, head, piece;  // token: counted from the warp's first, less than 32
  bool inside;
};

// Rotates, quantises and stores the lines of one half. By a whole warp; `base` and `scale_base` are
// those of the token that this lane has looked up, kNowhere: it is not written.
inline constexpr std::int64_t kNowhere = INT64_MIN;

template <class In, class Out, bool kRotated>
__device__ __forceinline__ void convert(const RowsArguments& a, const Half& half,
                                        const device::Pack<char, 16> (&data)[kLines<Out>],
                                        const Chunk (&chunks)[kLines<Out>], const Target& target,
                                        int lane) {
  const bool somewhere = target.place.somewhere();
  const std::int64_t base = somewhere ? half.to.offset(target.place, 0) : kNowhere;
  const std::int64_t scale_base =
      somewhere && half.scales.present() ? half.scales.offset(target.place, 0) : 0;
#pragma unroll
  for (int i = 0; i < kLines<Out>; ++i) {
    const Chunk& at = chunks[i];
    const std::int64_t to = __shfl_sync(0xffffffffu, base, at.token);
    const bool goes = at.inside && to != kNowhere;
    Eight<In> values;
#pragma unroll
    for (int w = 0; w < 4; ++w) values.words[w] = data[i].words[w];
    float plain[8];
    values.unpack(plain);
    Exact x[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = {plain[e], 0.0f};
    if constexpr (kRotated) {
      const int position = __shfl_sync(0xffffffffu, target.position, at.token);
      rotate<sizeof(Out) == 1>(x, values, a, position, at.piece, lane);
    }
    const auto place = [&] {
      return static_cast<Out*>(half.to.data) + to + at.head * half.to.head_stride + 8 * at.piece;
    };
    if constexpr (sizeof(Out) == 1) {
      if (half.scales.present()) {
        const int lanes = 1 << half.scale_shift;
        const float scale = scale_of<Out, kRotated>(x, lanes);
        const std::int64_t scales = __shfl_sync(0xffffffffu, scale_base, at.token);
        if (goes && (at.piece & (lanes - 1)) == 0) {
          static_cast<float*>(
              half.scales.data)[scales + at.head * half.scales.head_stride +
                                (at.piece >> half.scale_shift) * half.scales.inner_stride] = scale;
        }
        const uint2 bytes = divided<Out>(x, scale);
        if (goes) *reinterpret_cast<uint2*>(place()) = bytes;
        continue;
      }
    }
    float result[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) result[e] = leaning(x[e].high, x[e].low);
    if (goes) store_eight(place(), result);
  }
}

__device__ __forceinline__ void copy(const Half& half,
                                     const device::Pack<char, 16> (&data)[kLines<Bytes>],
                                     const Chunk (&chunks)[kLines<Bytes>], const Target& target) {
  const std::int64_t base =
      target.place.somewhere() ? half.to.offset(target.place, 0) * half.size : kNowhere;
#pragma unroll
  for (int i = 0; i < kLines<Bytes>; ++i) {
    const Chunk& at = chunks[i];
    const std::int64_t to = __shfl_sync(0xffffffffu, base, at.token);
    if (!at.inside || to == kNowhere) continue;
    data[i].store(static_cast<char*>(half.to.data) + to +
                  at.head * half.to.head_stride * half.size + 16 * at.piece);
  }
}

// Grid: (warps' shares, 1 or, when halves are not paired, one for each).
template <class In, class Out>
__global__ void __launch_bounds__(32 * kRowWarps, kCtas<In, Out>)
    append_rows(const __grid_constant__ RowsArguments a) {
  const Half& half = a.halves[blockIdx.y];  // its chunks are those of the other one in a pair
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first =
      static_cast<int>(blockIdx.x * kRowWarps + (threadIdx.x >> 5)) * 32 * kLines<Out>;
  arch::wait_for_previous_grid();
  if (first >= half.total) return;

  const int first_token = half.by_token(first);
  Chunk chunks[kLines<Out>];
#pragma unroll
  for (int i = 0; i < kLines<Out>; ++i) {
    const int chunk = first + 32 * i + lane, token = half.by_token(chunk);
    const int in_token = chunk - token * half.per_token, head = half.by_head(in_token);
    chunks[i] = {(token - first_token) & 31, head, in_token - head * half.chunks,
                 chunk < half.total};
  }
  device::Pack<char, 16> data[2][kLines<Out>];
  const auto ask = [&](int i, int source, bool there) {
    const Chunk& at = chunks[i];
    if (!there) return;
    data[0][i].load(half.from + source * half.token_bytes + at.head * half.head_bytes +
                    16 * at.piece);
    if (a.paired) {
      const Half& other = a.halves[1];
      data[1][i].load(other.from + source * other.token_bytes + at.head * other.head_bytes +
                      16 * at.piece);
    }
  };

  RowToken own;
  if (a.sequences.cu_seqlens.present()) {
#pragma unroll
    for (int i = 0; i < kLines<Out>; ++i) ask(i, first_token + chunks[i].token, chunks[i].inside);
    if (first_token + lane < a.tokens) own = row_of(a.sequences, a.tokens, first_token + lane);
  } else {
    own = scan_rows(a.sequences, a.tokens, first_token + lane);
#pragma unroll
    for (int i = 0; i < kLines<Out>; ++i) {
      const int source = __shfl_sync(0xffffffffu, own.row < 0 ? -1 : own.source, chunks[i].token);
      ask(i, source, source >= 0 && chunks[i].inside);
    }
  }
  const Target target = target_of(a.places, own);
  if constexpr (std::is_same_v<Out, Bytes>) {
    copy(half, data[0], chunks, target);
    if (a.paired) copy(a.halves[1], data[1], chunks, target);
  } else {
    if (a.rotated_chunks > 0 && blockIdx.y == 0) {
      convert<In, Out, true>(a, half, data[0], chunks, target, lane);
    } else {
      convert<In, Out, false>(a, half, data[0], chunks, target, lane);
    }
    if (a.paired) convert<In, Out, false>(a, a.halves[1], data[1], chunks, target, lane);
  }
}

}  // namespace hyla::attention::appending
