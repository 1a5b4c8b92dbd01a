// The warps of a CTA add up what each found in its keys, and write it: the output where the CTA saw
// all keys of the queries, a piece where it did not.
#pragma once

#include "arch/mbarrier.cuh"
#include "device/reduce.cuh"
#include "ops/attention_decode/finish.cuh"
#include "ops/attention_decode/fragments.cuh"
#include "ops/attention_decode/work.cuh"

namespace hyla::attention::decode {

// What a warp has found: O^T, and the softmax of a lane's two columns.
template <class Shape>
struct WarpState {
  ValueFragments<Shape> values = {};
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Where warps meet without waiting for each other: a warp leaves what it found in a segment and
// goes on; when all have, each adds up a part of it, in the order of the keys.
template <class Shape>
struct Meeting {
  float2 sums[Shape::kWarps][kWarpRows];  // top and sum
  arch::Mbarrier brought, taken;          // by every thread

  __device__ __forceinline__ void open() {
    arch::init(brought, Shape::kThreads);
    arch::init(taken, Shape::kThreads);
  }
};

template <class Shape>
__device__ __forceinline__ void write_row(const Arguments& a, const Segment& segment, int row,
                                          Softmax softmax, int column, float (&x)[4]) {
  if (segment.before >= 0) {
    Added added = piece_at<Shape>(a.pieces, segment.before, row, column);
    added.add(softmax, x);
    softmax = added.all;
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] = added.x[c];
  }
  if (segment.piece < 0) {
    const QueryRow query = query_row<Shape>(a, segment.first_token, segment.first_head,
                                            segment.first_row, segment.rows, row);
    if (query.token >= 0) write_out(a.out, query, softmax, column, x);
    return;
  }
  set_piece<Shape>(a.pieces, segment.piece, row, column, softmax, x);
}

__device__ __forceinline__ void store_alone(float* to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(arch::shared_address(to)), "f"(x) : "memory");
}

// area [kWarps, 8, kMergePitch]
template <class Shape>
__device__ __forceinline__ void bring(WarpState<Shape>& state, Meeting<Shape>& meeting, float* area,
                                      int warp, int lane) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    state.sum[0] += __shfl_xor_sync(device::kFullWarp, state.sum[0], step);
    state.sum[1] += __shfl_xor_sync(device::kFullWarp, state.sum[1], step);
  }
  if (lane < 4) {
    meeting.sums[warp][2 * lane] = make_float2(state.top[0], state.sum[0]);
    meeting.sums[warp][2 * lane + 1] = make_float2(state.top[1], state.sum[1]);
  }
  float* own = area + (warp * kWarpRows + 2 * (lane & 3)) * Shape::kMergePitch;
#pragma unroll
  for (int i = 0; i < Shape::D / 16; ++i) {
    const float(&o)[4] = state.values[i];
    float* to = own + i * 16 + value_element<Shape>(lane);
    // One by one: as pairs they would have to lie side by side in registers, where the products
    // that made them do not want them.
    store_alone(to, o[0]);
    store_alone(to + Shape::kMergePitch, o[1]);
    store_alone(to + kValueDistance<Shape>, o[2]);
    store_alone(to + Shape::kMergePitch + kValueDistance<Shape>, o[3]);
  }
  arch::arrive(meeting.brought);
}

// Four columns of a row, of all warps that have parts of its keys.
template <class Shape>
__device__ __forceinline__ Softmax add_warps(const Meeting<Shape>& meeting, const float* area,
                                             int row, int column, float (&x)[4]) {
  const int head = row / Shape::kChunk, member = row / kWarpRows % Shape::kSharing;
  const auto warp_of = [&](int part) {
    return (head * Shape::kParts + part) * Shape::kSharing + member;
  };
  Softmax all;
#pragma unroll
  for (int part = 0; part < Shape::kParts; ++part) {
    all.top = fmaxf(all.top, meeting.sums[warp_of(part)][row % kWarpRows].x);
  }
#pragma unroll
  for (int part = 0; part < Shape::kParts; ++part) {
    const int from = warp_of(part) * kWarpRows + row % kWarpRows;
    const float2 one = meeting.sums[warp_of(part)][row % kWarpRows];
    const float factor = weight(one.x, all.top);
    const float4 y = *reinterpret_cast<const float4*>(area + from * Shape::kMergePitch + column);
    all.sum += factor * one.y;
    x[0] += factor * y.x, x[1] += factor * y.y, x[2] += factor * y.z, x[3] += factor * y.w;
  }
  return all;
}

template <class Shape>
__device__ __forceinline__ void add_up(const Arguments& a, const Segment& segment,
                                       const Meeting<Shape>& meeting, const float* area) {
  constexpr int kQuads = Shape::D / 4, kCount = Shape::kRows * kQuads;
  const int rows = segment.rows, piece = segment.piece;
  const bool plain = segment.before < 0 && piece >= 0;
  const auto first = static_cast<int>(threadIdx.x);
  if (kCount % Shape::kThreads == 0 && plain) {
    // The end of a call waits for this: all rows of a thread at once.
#pragma unroll
    for (int n = 0; n < kCount / Shape::kThreads; ++n) {
      const int i = first + n * Shape::kThreads, row = i / kQuads, column = i % kQuads * 4;
      float x[4] = {};
      const Softmax all = add_warps<Shape>(meeting, area, row, column, x);
      if (row % Shape::kChunk < rows) set_piece<Shape>(a.pieces, piece, row, column, all, x);
    }
    return;
  }
#pragma unroll 1
  for (int i = first; i < kCount; i += Shape::kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    if (row % Shape::kChunk >= rows) continue;
    float x[4] = {};
    const Softmax all = add_warps<Shape>(meeting, area, row, column, x);
    write_row<Shape>(a, segment, row, all, column, x);
  }
}

}  // namespace hyla::attention::decode
