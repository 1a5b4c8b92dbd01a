// Attention of a few queries over long caches: a stream of keys and values through tensor cores.
//
// A warp multiplies units of 16 keys with 8 packed query rows (token * group + head of the group)
// and keeps its own maximum, sum and O^T until its part of a segment is done; only then do the
// warps of the CTA meet. README.md draws it.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_decode/fragments.cuh"
#include "ops/attention_decode/merge.cuh"
#include "ops/attention_decode/share.cuh"

namespace hyla::attention::decode {

// The logits' largest may grow by this many powers of two before the sums are scaled again: weights
// up to 2^8 lose nothing in 16 bits.
inline constexpr float kSlack = 8;

// A lane's view of its warp's queries: fragments of row lane / 4, softmax of the rows of its two
// columns, 2 * (lane % 4) and the next.
template <class Shape>
struct WarpQueries {
  QueryFragments<Shape> fragments;
  float scale[2];          // logits to log2
  int all_first, all_end;  // keys that every row sees
  bool any;                // does the warp have a row at all?
};

template <class Shape>
__device__ __forceinline__ void load_fragments(const QueryRows& from, const QueryRow& query,
                                               QueryFragments<Shape>& q, float& undo, int lane) {
  const char* row = from.data + static_cast<std::int64_t>(query.token) * from.token_bytes +
                    static_cast<std::int64_t>(query.head) * from.head_bytes;
  // Instructions before the first products cost more than those later on: nothing but loads, if all
  // is there.
  const bool there = query.token >= 0;
  if (from.dim == Shape::D && __all_sync(device::kFullWarp, there)) {
#pragma unroll
    for (int i = 0; i < Shape::D / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int element = i * 16 + query_element<Shape>(lane, j);
        q[i][j] = *reinterpret_cast<const std::uint32_t*>(row + 2 * element);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::D / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int element = i * 16 + query_element<Shape>(lane, j);
        q[i][j] = there && element < from.dim
                      ? *reinterpret_cast<const std::uint32_t*>(row + 2 * element)
                      : 0;
      }
    }
  }
  undo = 1;
  if constexpr (Shape::kQuantised) {
    // Queries become float16: a power of two brings their largest to 2^13.
    const auto numbers = [&](std::uint32_t word) {
      return from.bf16
                 ? make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u))
                 : __half22float2(reinterpret_cast<const __half2&>(word));
    };
    float largest = 0;
#pragma unroll
    for (int i = 0; i < Shape::D / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 x = numbers(q[i][j]);
        largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(device::kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(device::kFullWarp, largest, 2));
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -100);
    const float factor = __uint_as_float(static_cast<unsigned>(127 + 13 - exponent) << 23);
    undo = __uint_as_float(static_cast<unsigned>(127 - 13 + exponent) << 23);
#pragma unroll
    for (int i = 0; i < Shape::D / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 x = numbers(q[i][j]);
        const __half2 scaled = __floats2half2_rn(x.x * factor, x.y * factor);
        q[i][j] = reinterpret_cast<const std::uint32_t&>(scaled);
      }
    }
  }
}

template <class Shape>
__device__ __forceinline__ void load_queries(const Arguments& a, const Segment& segment, int head,
                                             int member, WarpQueries<Shape>& queries, int lane) {
  float undo;
  load_fragments<Shape>(
      a.q,
      query_row<Shape>(a, segment.first_token, segment.first_head, segment.first_row, segment.rows,
                       head * Shape::kChunk + member * kWarpRows + (lane >> 2)),
      queries.fragments, undo, lane);
  queries.any = segment.rows > member * kWarpRows;
  queries.all_first = segment.all_first;
  queries.all_end = segment.all_end;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    queries.scale[c] = a.scale;
    if constexpr (Shape::kQuantised) {
      queries.scale[c] *= __shfl_sync(device::kFullWarp, undo, (2 * (lane & 3) + c) * 4);
    }
  }
}

// cap * tanh(x / cap), all in log2. Near 0 by its series: far below a large cap a logit would keep
// no digits of 1 - 2 / (1 + e^(2x)).
__device__ __forceinline__ float capped(float x, float cap) {
  constexpr float kNear = 0.2f;
  const float part = __fdividef(x, cap), square = part * part;
  const float series =
      fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  const float e = arch::exp2_fast(2 * kLog2E * part);
  return fabsf(part) < kNear ? x * series : cap * (1 - __fdividef(2.0f, e + 1));
}

// Of a lane's two keys.
struct Scales {
  float low = 1, high = 1;

  Scales() = default;
  __device__ __forceinline__ Scales(std::uint32_t address, int lane)
      : low(shared_float(address + (lane >> 2) * 4)),
        high(shared_float(address + (lane >> 2) * 4 + 32)) {}

 private:
  static __device__ __forceinline__ float shared_float(std::uint32_t address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
  }
};

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

template <class Shape>
__device__ __forceinline__ void rescale(WarpState<Shape>& state, float top0, float top1) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(device::kFullWarp, top0, step));
    top1 = fmaxf(top1, __shfl_xor_sync(device::kFullWarp, top1, step));
  }
  top0 = fmaxf(top0, state.top[0]);
  top1 = fmaxf(top1, state.top[1]);
  const float old0 = weight(state.top[0], top0), old1 = weight(state.top[1], top1);
  state.top[0] = top0, state.top[1] = top1;
  state.sum[0] *= old0, state.sum[1] *= old1;
#pragma unroll
  for (int i = 0; i < Shape::D / 16; ++i) {
    state.values[i][0] *= old0, state.values[i][1] *= old1;
    state.values[i][2] *= old0, state.values[i][3] *= old1;
  }
}

// Logits of keys that a lane's two rows do not see.
template <class Shape>
__device__ __forceinline__ void hide(const Arguments& a, const Segment& segment, int member,
                                     int key, float (&s)[4], int lane) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    // Rows that do not exist are like the last.
    const int row = min(member * kWarpRows + 2 * (lane & 3) + c, segment.rows - 1);
    const Sight::Range keys =
        a.sight.keys(segment.position + a.q.by_group(segment.first_row + row), segment.keys);
#pragma unroll
    for (int e = c; e < 4; e += 2) {
      const int own = key + (lane >> 2) + 8 * (e >> 1);
      if (own < keys.begin || own >= keys.end) s[e] = -INFINITY;
    }
  }
}

// Logits of the 16 keys from `key` on: s[0], s[1] of key lane / 4, s[2], s[3] of that + 8.
template <class Shape>
__device__ __forceinline__ void finish_logits(const Arguments& a, const Segment& segment,
                                              const WarpQueries<Shape>& queries, int member,
                                              int key, float (&s)[4], int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e) s[e] *= queries.scale[e & 1];
  if (a.softcap > 0) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = capped(s[e], a.softcap);
  }
  if (key < queries.all_first || key + kUnit > queries.all_end) {
    hide<Shape>(a, segment, member, key, s, lane);
  }
}

// Logits to weights, as the operand of the second product. With scales it is weight * scale that
// meets the values and must stay small: the reference of the softmax counts the scale as a part of
// the logit.
template <class Shape>
__device__ __forceinline__ void weigh(float (&s)[4], bool scaled, const Scales& scales,
                                      WarpState<Shape>& state, std::uint32_t (&p)[2]) {
  using Math = typename Numbers<typename Shape::Stored>::Math;
  float top0 = fmaxf(s[0], s[2]), top1 = fmaxf(s[1], s[3]);
  if (Shape::kQuantised && scaled) {
    constexpr float kSmallest = -60;  // a scale of 0 has no logarithm
    const float low_log = fmaxf(__log2f(fabsf(scales.low)), kSmallest);
    const float high_log = fmaxf(__log2f(fabsf(scales.high)), kSmallest);
    top0 = fmaxf(s[0] + low_log, s[2] + high_log);
    top1 = fmaxf(s[1] + low_log, s[3] + high_log);
  }
  if (__any_sync(device::kFullWarp, top0 - state.top[0] > kSlack || top1 - state.top[1] > kSlack)) {
    rescale(state, top0, top1);
  }
  const float zero0 = state.top[0] == -INFINITY ? 0.0f : state.top[0];
  const float zero1 = state.top[1] == -INFINITY ? 0.0f : state.top[1];
  s[0] = arch::exp2_fast(s[0] - zero0), s[2] = arch::exp2_fast(s[2] - zero0);
  s[1] = arch::exp2_fast(s[1] - zero1), s[3] = arch::exp2_fast(s[3] - zero1);
  state.sum[0] += s[0] + s[2];
  state.sum[1] += s[1] + s[3];
  p[0] = arch::transpose_matrix(pack<Math>(s[0] * scales.low, s[1] * scales.low));
  p[1] = arch::transpose_matrix(pack<Math>(s[2] * scales.high, s[3] * scales.high));
}

// What a warp does with the keys of a unit, and then with its values.
template <class Shape>
__device__ __forceinline__ void use_keys(const Arguments& a, const Segment& segment,
                                         const WarpQueries<Shape>& queries, const Ring<Shape>& ring,
                                         int member, int slot, int key, float (&s)[4], int lane) {
  if (Shape::kSharing == 1 || queries.any) {
    scores<Shape>(ring.tile(slot), queries.fragments, s, lane);
    if constexpr (Shape::kQuantised) {
      if (has_key_scales<Shape>(a)) {
        const Scales scales(ring.scales(slot), lane);
        s[0] *= scales.low, s[1] *= scales.low, s[2] *= scales.high, s[3] *= scales.high;
      }
    }
    finish_logits<Shape>(a, segment, queries, member, key, s, lane);
  }
}
template <class Shape>
__device__ __forceinline__ void use_values(const Arguments& a, const WarpQueries<Shape>& queries,
                                           const Ring<Shape>& ring, int slot, float (&s)[4],
                                           WarpState<Shape>& state, int lane) {
  if (Shape::kSharing == 1 || queries.any) {
    Scales scales;
    const bool scaled = Shape::kQuantised && has_value_scales<Shape>(a);
    if (scaled) scales = Scales(ring.scales(slot), lane);
    std::uint32_t p[2];
    weigh<Shape>(s, scaled, scales, state, p);
    add_values<Shape>(ring.tile(slot), p[0], p[1], state.values, lane);
  }
}

// The listed segments, of which the first may be alone so far (`rest` then lists the others, once
// in every warp). One loop fills the ring and uses it, so that little code lies before the first
// copy. `met`: how often the warps have met.
template <class Shape, class List>
__device__ __forceinline__ void stream(const Arguments& a, WorkList<Shape>& list, Ring<Shape>& ring,
                                       Meeting<Shape>& meeting, int& met, float* merge_area,
                                       const Seat& seat, int warp, bool complete,
                                       const List& rest) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // A slot that held keys gets keys again, or where their number is odd, values.
  constexpr bool kOdd = Shape::kSlots % 2 != 0;
  WarpQueries<Shape> queries;
  WarpState<Shape> state;
  int filled = 0, slot = 0, at = -1, key = 0, end = 0;
  bool brought = false, done = false;  // the segment before `at` is to be added up; it was the last
  const auto next_slot = [&] { slot = slot + 1 == Shape::kSlots ? 0 : slot + 1; };
#pragma unroll 1
  while (true) {
    float s[4] = {};
    const bool full = filled >= Shape::kSlots, ended = full && key >= end;
    // The other segments are listed when the first keys have been used: what is in front of that is
    // time in which the memory has nothing to do.
    if (!complete && (filled > Shape::kSlots || ring.exhausted())) {
      rest();
      ring.open(list.count);
      complete = true;
    }
    if (brought &&
        (ended || __any_sync(device::kFullWarp, arch::is_complete(meeting.brought, met & 1)))) {
      arch::wait(meeting.brought, met & 1);
      add_up<Shape>(a, list.segments[at - 1], meeting, merge_area);
      arch::arrive(meeting.taken);
      ++met;
      brought = false;
      if (done) return;
    }
    // The first segment's queries are asked for behind the first tiles, unless they are worked on
    // at once: they overtake what comes from memory, but not all of it.
    if (full ? ended : !Shape::kQuantised && at < 0 && filled > 0) {
      if (at >= 0) {
        if (met > 0) arch::wait(meeting.taken, (met - 1) & 1);
        bring<Shape>(state, meeting, merge_area, warp, lane);
        brought = true;
        state = {};
      }
      done = ++at == list.count;
      if (done) continue;
      const Segment& segment = list.segments[at];
      key = segment.begin + seat.part * kUnit;
      end = segment.end;
      load_queries<Shape>(a, segment, seat.head, seat.member, queries, lane);
      if (full && key >= end) continue;
    }
    if (full) {
      ring.wait();
      use_keys<Shape>(a, list.segments[at], queries, ring, seat.member, slot, key, s, lane);
    }
    if (!kOdd || filled > 0) {
      ring.template refill<kOdd>(slot);
      next_slot();
      if (!full) ++filled;
    }
    if (full) {
      ring.wait();
      use_values<Shape>(a, queries, ring, slot, s, state, lane);
      key += Shape::kParts * kUnit;
      filled = Shape::kSlots + 1;
    } else {
      ++filled;
    }
    ring.template refill<!kOdd>(slot);
    next_slot();
  }
}

// Grid: at most one CTA an SM.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_decode(const __grid_constant__ typename Shape::Given a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ WorkList<Shape> list;
  __shared__ Meeting<Shape> meeting;
  arch::let_next_grid_start();
  fetch_ahead<Shape>(a);
  arch::wait_for_previous_grid();
  const int warp = __shfl_sync(device::kFullWarp, static_cast<int>(threadIdx.x) >> 5, 0);
  const int ring_index = warp / Shape::kSharing;
  const Seat seat{ring_index % Shape::kParts, ring_index / Shape::kParts, warp % Shape::kSharing};
  constexpr int kTiles = Shape::kRings * Shape::kSlots * Shape::kTileBytes;
  const std::uint32_t tiles =
      arch::shared_address(memory) + ring_index * Shape::kSlots * Shape::kTileBytes;
  const std::uint32_t scales =
      arch::shared_address(memory) + kTiles + ring_index * Shape::kSlots * kUnit * 4;
  auto* merge_area = reinterpret_cast<float*>(memory + kTiles + Shape::kScaleBytes);
  if (threadIdx.x == 0) meeting.open();
  int met = 0;
  run_share<Shape>(
      a, list, tiles, scales, seat, [&](Ring<Shape>& ring, bool complete, const auto& rest) {
        stream<Shape>(a, list, ring, meeting, met, merge_area, seat, warp, complete, rest);
      });
}

}  // namespace hyla::attention::decode
