// Rotates, quantises and stores what a warp has of its tokens.
#pragma once

#include "ops/attention_append/quotients.cuh"
#include "ops/attention_append/turns.cuh"

namespace hyla::attention::appending {

// One of the two numbers of a word.
template <class In>
__device__ __forceinline__ float number(std::uint32_t word, int index) {
  if constexpr (std::is_same_v<In, __half>) {
    const __half2 pair = reinterpret_cast<const __half2&>(word);
    return __half2float(index == 0 ? pair.x : pair.y);
  } else {
    return __uint_as_float(index == 0 ? word << 16 : word & 0xffff0000u);
  }
}

// What a lane has of a half of some heads: in shared memory, [head][chunk], 32 lanes side by side.
template <int kAtOnce>
struct SharedChunks {
  static constexpr int kHeads = kAtOnce;
  static constexpr bool kHasScales = false;
  const uint4 *data, *tables;

  __device__ __forceinline__ Chunk chunk(int h, int c) const {
    Chunk chunk;
    const uint4 x = data[32 * (2 * h + c)];
    chunk.words[0] = x.x, chunk.words[1] = x.y, chunk.words[2] = x.z, chunk.words[3] = x.w;
    return chunk;
  }
  __device__ __forceinline__ Turns turns() const { return Turns(tables); }
};

// In registers, of one head.
struct OwnChunks {
  static constexpr int kHeads = 1;
  static constexpr bool kHasScales = true;
  Chunk data[2];
  Turns tables;
  float scales[2] = {1.0f, 1.0f};  // that were given

  // Not an index: registers have none.
  __device__ __forceinline__ Chunk chunk(int, int c) const {
    Chunk chunk;
#pragma unroll
    for (int w = 0; w < 4; ++w) chunk.words[w] = c == 0 ? data[0].words[w] : data[1].words[w];
    return chunk;
  }
  __device__ __forceinline__ float scale(int c) const { return c == 0 ? scales[0] : scales[1]; }
  const __device__ __forceinline__ Turns& turns() const { return tables; }
};

// The largest of the lanes of a run, a power of two up to 16. Beyond its lanes each is compared
// with itself.
template <class Value, class Larger>
__device__ __forceinline__ Value largest_of_run(Value x, int lanes, Larger larger) {
#pragma unroll
  for (int step = 1; step < 16; step *= 2) {
    x = larger(x, __shfl_xor_sync(0xffffffffu, x, step < lanes ? step : 0));
  }
  return x;
}

// Where a lane's chunks of the first head go.
struct Destination {
  std::int64_t values, scales;  // kNowhere: nowhere
};

// kHead: a head of keys has one scale, and so has one of values. kGiven: those of the cache, if it
// has some, are divided by as they are.
enum class Scales { kHead, kAny, kGiven };

// One half of a token, some heads at a time. By a whole warp.
template <class In, class Out, Scales kScales, class Chunks>
class Converter {
 public:
  __device__ __forceinline__ Converter(const RowsArguments& a, const Half& of, const LanePair& at,
                                       Destination to, int head, const Chunks& chunks,
                                       const GivenScale<Out>& one)
      : a_(a),
        half_(of),
        at_(at),
        head_(head),
        goes_(at.inside && to.values != kNowhere),
        chunks_(chunks),
        one_(one) {
    values_ = static_cast<Out*>(of.to.data) + to.values + head * of.to.head_stride + 8 * at.first;
    scales_ = static_cast<float*>(of.scales.data) + to.scales + head * of.scales.head_stride;
  }

  // As they are, or divided by their scales.
  __device__ __forceinline__ void convert() const {
    if constexpr (sizeof(Out) == 2) {
#pragma unroll
      for (int i = 0; i < 2 * kHeads; ++i) {
        if (goes(i / 2)) chunk(i / 2, i % 2).store(place(i / 2, i % 2));
      }
    } else if constexpr (kScales == Scales::kGiven) {
      divide_given();
    } else {
      divide();
    }
  }

  // Rotated before; a position beyond the tables is not.
  __device__ __forceinline__ void convert_turned(int position) const {
    const bool turns = at_.turned && position >= 0 && position < a_.positions;
    const Turns tables = chunks_.turns();
    unsigned unsure = 0;  // heads, a bit each, the same in all lanes
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float x[2][8];
      numbers_of<In>(chunk(h, 0)).unpack(x[0]);
      numbers_of<In>(chunk(h, 1)).unpack(x[1]);
      if constexpr (sizeof(Out) == 2) {
        float y[2][8];
        turn(x, y, turns, tables, a_.interleaved,
             [](float p, float q, float c, float s) { return fmaf(p, c, -(q * s)); });
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          Eight<Out> pack;
          pack.pack(y[c]);
          if (goes(h)) pack.store(place(h, c));
        }
      } else if (!divide_turned(h, x, turns, tables)) {
        unsure |= 1u << h;
      }
    }
    if constexpr (sizeof(Out) == 1) {
#pragma unroll 1
      for (int h = 0; unsure != 0; ++h, unsure >>= 1) {
        if ((unsure & 1) != 0) turn_exactly(h, turns);
      }
    }
  }

 private:
  static constexpr bool kOneScale = kScales == Scales::kHead;
  static constexpr int kHeads = Chunks::kHeads;

  __device__ __forceinline__ Chunk chunk(int h, int c) const { return chunks_.chunk(h, c); }
  __device__ __forceinline__ bool one_scale() const { return kOneScale || half_.one_scale; }
  __device__ __forceinline__ bool goes(int h) const { return goes_ && head_ + h < a_.heads; }
  __device__ __forceinline__ Out* place(int h, int chunk) const {
    return values_ + h * half_.to.head_stride + 8 * chunk * at_.distance;
  }
  __device__ __forceinline__ void store(int h, int chunk, uint2 bytes) const {
    if (goes(h)) *reinterpret_cast<uint2*>(place(h, chunk)) = bytes;
  }
  // Of the cache; 1 where it has none.
  __device__ __forceinline__ float given_scale(int h, int chunk) const {
    if constexpr (Chunks::kHasScales) {
      return chunks_.scale(chunk);
    } else {
      if (half_.serves_all) return one_.scale;
      if (!goes(h)) return 1.0f;
      const int run = half_.one_scale ? 0 : (at_.first + chunk * at_.distance) >> half_.run_shift;
      return scales_[h * half_.scales.head_stride + run * half_.scales.inner_stride];
    }
  }
  __device__ __forceinline__ GivenScale<Out> given(int h, int chunk) const {
    if (!Chunks::kHasScales && half_.serves_all) return one_;
    return GivenScale<Out>(given_scale(h, chunk));
  }
  __device__ __forceinline__ void store_scale(int h, int chunk, float scale) const {
    const int index = at_.first + chunk * at_.distance;
    float* to = scales_ + h * half_.scales.head_stride;
    if (one_scale()) {
      if (goes(h) && index == 0) *to = scale;
    } else if (goes(h) && (index & (half_.run_lanes - 1)) == 0) {
      to[(index >> half_.run_shift) * half_.scales.inner_stride] = scale;
    }
  }

  // Numbers of 16 bits are compared two at a time.
  using Pair = std::conditional_t<std::is_same_v<In, __half>, __half2, __nv_bfloat162>;
  static __device__ __forceinline__ std::uint32_t larger(std::uint32_t x, std::uint32_t y) {
    const Pair pair = __hmax2(reinterpret_cast<const Pair&>(x), reinterpret_cast<const Pair&>(y));
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  // Of the even numbers and of the odd ones.
  static __device__ __forceinline__ std::uint32_t largest_words(const Chunk& chunk) {
    const auto magnitude = [&](int w) { return chunk.words[w] & 0x7fff7fffu; };
    return larger(larger(magnitude(0), magnitude(1)), larger(magnitude(2), magnitude(3)));
  }

  static __device__ __forceinline__ std::uint32_t larger_of_each(std::uint32_t x, std::uint32_t y) {
    return larger(__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632));
  }

  // The largest of each chunk's run: a word a head, a half of it a chunk.
  __device__ __forceinline__ void largest_of_chunks(const Chunk (&data)[kHeads][2],
                                                    std::uint32_t (&largest)[kHeads]) const {
    std::uint32_t of[kHeads][2];
#pragma unroll
    for (int i = 0; i < 2 * kHeads; ++i) of[i / 2][i % 2] = largest_words(data[i / 2][i % 2]);
    if constexpr (kOneScale && kHeads == 2) {  // both heads at once
      const std::uint32_t heads =
          largest_of_run(larger_of_each(larger(of[0][0], of[0][1]), larger(of[1][0], of[1][1])),
                         half_.run_lanes, larger);
      largest[0] = __byte_perm(heads, 0, 0x1010);
      largest[1] = __byte_perm(heads, 0, 0x3232);
    } else {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        std::uint32_t chunks = larger_of_each(of[h][0], of[h][1]);
        if (one_scale()) chunks = larger(chunks, __byte_perm(chunks, 0, 0x1032));
        largest[h] = largest_of_run(chunks, half_.run_lanes, larger);
      }
    }
  }

  // The chunks of `unsure`, a bit each, by divide(head, chunk, numbers).
  template <class Divide>
  __device__ __forceinline__ void divide_again(unsigned unsure, Divide divide) const {
#pragma unroll 1
    for (int i = 0; unsure != 0; ++i, unsure >>= 1) {
      if ((unsure & 1) == 0) continue;
      float numbers[8];
      numbers_of<In>(chunk(i / 2, i % 2)).unpack(numbers);
      Exact exact[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) exact[e] = {numbers[e], 0.0f};
      store(i / 2, i % 2, divide(i / 2, i % 2, exact));
    }
  }

  __device__ __forceinline__ void divide() const {
    Chunk data[kHeads][2];
#pragma unroll
    for (int i = 0; i < 2 * kHeads; ++i) data[i / 2][i % 2] = chunk(i / 2, i % 2);
    std::uint32_t largest[kHeads];
    largest_of_chunks(data, largest);
    unsigned unsure = 0;  // chunks, a bit each
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      Divisor<Out> by(number<In>(largest[h], 0));
      store_scale(h, 0, by.scale);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (c == 1 && !one_scale()) by = Divisor<Out>(number<In>(largest[h], 1));
        if (c == 1 && !kOneScale) store_scale(h, 1, by.scale);
        if (!by.plain) unsure |= 1u << (2 * h + c);
        float numbers[8];
        numbers_of<In>(data[h][c]).unpack(numbers);
        store(h, c, by.divide(numbers));
      }
    }
    divide_again(unsure, [&](int h, int c, Exact(&x)[8]) {
      const std::uint32_t both = h == 0 ? largest[0] : largest[kHeads - 1];
      return divide_exactly<Out>(x, scale_of<Out>(number<In>(c == 0 ? both << 16 : both, 1)));
    });
  }

  __device__ __forceinline__ void divide_given() const {
    unsigned unsure = 0;  // chunks, a bit each
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      GivenScale<Out> by = given(h, 0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (c == 1 && !one_scale()) by = given(h, 1);
        float numbers[8];
        numbers_of<In>(chunk(h, c)).unpack(numbers);
        uint2 bytes;
        if (!by.divide(numbers, bytes)) unsure |= 1u << (2 * h + c);
        store(h, c, bytes);
      }
    }
    divide_again(unsure, [&](int h, int c, Exact(&x)[8]) { return given(h, c).divide_exactly(x); });
  }

  // Of a lane's two chunks, over their runs.
  __device__ __forceinline__ void largest_of_runs(float (&largest)[2]) const {
    const auto more = [](float x, float y) { return fmaxf(x, y); };
    if (one_scale()) {
      largest[0] = largest_of_run(fmaxf(largest[0], largest[1]), half_.run_lanes, more);
      largest[1] = largest[0];
    } else {
      largest[0] = largest_of_run(largest[0], half_.run_lanes, more);
      largest[1] = largest_of_run(largest[1], half_.run_lanes, more);
    }
  }

  // Of a lane's run, by a whole warp. `own`: the lane's largest.
  __device__ __forceinline__ bool largest_is_turned(float own, float largest, bool turns) const {
    const unsigned lanes = __ballot_sync(0xffffffffu, turns && own * (1 + 0x1p-21f) >= largest);
    const int begin = static_cast<int>(threadIdx.x) & 31 & ~(half_.run_lanes - 1);
    return (lanes >> begin & ((1u << half_.run_lanes) - 1)) != 0;
  }

  // False in all lanes where one is not sure. What is rotated has an error of 2^-23 of itself.
  __device__ __forceinline__ bool divide_turned(int h, const float (&x)[2][8], bool turns,
                                                const Turns& tables) const {
    float y[2][8];
    turn(x, y, turns, tables, a_.interleaved, [](float p, float q, float c, float s) {
      const float product = q * s;
      return fmaf(p, c, -product) - fmaf(q, s, -product);
    });
    const bool sure =
        kScales == Scales::kGiven ? divide_by_given(h, y, turns) : divide_by_own(h, y, turns);
    return !__any_sync(0xffffffffu, !sure && goes(h));
  }

  __device__ __forceinline__ bool divide_by_given(int h, const float (&y)[2][8], bool turns) const {
    bool sure = true;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const GivenScale<Out> by = given(h, c);
      uint2 bytes;
      sure = (turns ? by.divide_between(y[c], bytes) : by.divide(y[c], bytes)) && sure;
      store(h, c, bytes);
    }
    return sure;
  }

  __device__ __forceinline__ bool divide_by_own(int h, const float (&y)[2][8], bool turns) const {
    bool sure = true, rotated = true;
    float largest[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      largest[c] = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) largest[c] = fmaxf(largest[c], fabsf(y[c][i]));
    }
    if (one_scale()) largest[0] = largest[1] = fmaxf(largest[0], largest[1]);
    const float own[2] = {largest[0], largest[1]};
    largest_of_runs(largest);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (c == 0 || !kOneScale) rotated = largest_is_turned(own[c], largest[c], turns);
      const Divisor<Out> by(largest[c]);
      if (c == 0 || !kOneScale) store_scale(h, c, by.scale);
      uint2 bytes;
      if (by.plain && !turns && !rotated) {
        bytes = by.divide(y[c]);
      } else {
        sure = divide_between<Out>(y[c], by.scale, bytes) && sure;
      }
      store(h, c, bytes);
    }
    return sure;
  }

  __device__ __forceinline__ void turn_exactly(int h, bool turns) const {
    float x[2][8];
    numbers_of<In>(chunk(h, 0)).unpack(x[0]);
    numbers_of<In>(chunk(h, 1)).unpack(x[1]);
    Exact y[2][8];
    turn(x, y, turns, chunks_.turns(), a_.interleaved, [](float p, float q, float c, float s) {
      const Exact sum = exact_products(p, c, -q, s);
      return fabsf(sum.high) < __builtin_huge_valf() ? sum : Exact{p * c - q * s, 0.0f};
    });
    if constexpr (kScales == Scales::kGiven) {
      store(h, 0, given(h, 0).divide_exactly(y[0]));
      store(h, 1, given(h, 1).divide_exactly(y[1]));
    } else {
      divide_exactly_by_own(h, y);
    }
  }

  __device__ __forceinline__ void divide_exactly_by_own(int h, Exact (&y)[2][8]) const {
    float largest[2], low[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      largest[c] = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) largest[c] = fmaxf(largest[c], fabsf(y[c][i].high));
    }
    largest_of_runs(largest);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      low[c] = -__builtin_huge_valf();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const Exact& e = y[c][i];
        if (fabsf(e.high) == largest[c]) low[c] = fmaxf(low[c], copysignf(1.0f, e.high) * e.low);
      }
    }
    largest_of_runs(low);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float scale = scale_of<Out>(largest[c], low[c]);
      store_scale(h, c, scale);
      store(h, c, divide_exactly<Out>(y[c], scale));
    }
  }

  const RowsArguments& a_;
  const Half& half_;
  const LanePair& at_;
  int head_;
  bool goes_;
  const Chunks& chunks_;
  const GivenScale<Out>& one_;  // where one serves all
  Out* values_;
  float* scales_;
};

}  // namespace hyla::attention::appending
