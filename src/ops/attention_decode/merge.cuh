// The warps of a CTA add up what each found in its keys, and write it: the output where the CTA saw
// all keys of the queries, a piece where it did not.
#pragma once

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

template <class Shape>
struct MergeSums {
  Softmax of[Shape::kWarps][kWarpRows];
};

// Maximum and sum over the warps that have parts of a row's keys, in a fixed order.
template <class Shape>
__device__ __forceinline__ Softmax merged(const MergeSums<Shape>& sums, int head, int member,
                                          int row) {
  Softmax all;
#pragma unroll
  for (int part = 0; part < Shape::kParts; ++part) {
    const int warp = (head * Shape::kParts + part) * Shape::kSharing + member;
    all.top = fmaxf(all.top, sums.of[warp][row].top);
  }
#pragma unroll
  for (int part = 0; part < Shape::kParts; ++part) {
    const Softmax one = sums.of[(head * Shape::kParts + part) * Shape::kSharing + member][row];
    all.sum += one.sum * weight(one.top, all.top);
  }
  return all;
}

template <class Shape>
__device__ __forceinline__ void write_row(const Arguments& a, const Segment& segment, int row,
                                          const Softmax& softmax, int column, float (&x)[4]) {
  if (segment.piece < 0) {
    const QueryRow query = query_row<Shape>(a, segment.first_token, segment.first_head,
                                            segment.first_row, segment.rows, row);
    if (query.token >= 0) write_out(a.out, query, softmax, column, x);
    return;
  }
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x) * 2 + segment.piece) * Shape::kRows + row;
  __stcg(reinterpret_cast<float4*>(a.pieces.values + at * Shape::D + column),
         make_float4(x[0], x[1], x[2], x[3]));
  if (column == 0) __stcg(a.pieces.sums + at, make_float2(softmax.top, softmax.sum));
}

// area [kWarps, 8, kMergePitch]
template <class Shape>
__device__ __forceinline__ void merge(const Arguments& a, const Segment& segment,
                                      WarpState<Shape>& state, MergeSums<Shape>& sums, float* area,
                                      int warp, int lane) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    state.sum[0] += __shfl_xor_sync(device::kFullWarp, state.sum[0], step);
    state.sum[1] += __shfl_xor_sync(device::kFullWarp, state.sum[1], step);
  }
  if (lane < 4) {
    sums.of[warp][2 * lane] = {state.top[0], state.sum[0]};
    sums.of[warp][2 * lane + 1] = {state.top[1], state.sum[1]};
  }
  __syncthreads();
  const int member = warp % Shape::kSharing, head = warp / Shape::kSharing / Shape::kParts;
  const int column = 2 * (lane & 3);
  const float factor0 = weight(state.top[0], merged(sums, head, member, column).top);
  const float factor1 = weight(state.top[1], merged(sums, head, member, column + 1).top);
  float* own = area + (warp * kWarpRows + column) * Shape::kMergePitch;
  constexpr int kPasses = Shape::D / Shape::kMergeColumns, kTiles = Shape::kMergeColumns / 16;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    if (pass > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float(&o)[4] = state.values[pass * kTiles + i];
      float* to = own + i * 16 + value_element<Shape>(lane);
      to[0] = o[0] * factor0;
      to[Shape::kMergePitch] = o[1] * factor1;
      to[kValueDistance<Shape>] = o[2] * factor0;
      to[Shape::kMergePitch + kValueDistance<Shape>] = o[3] * factor1;
    }
    __syncthreads();
    constexpr int kQuads = Shape::kMergeColumns / 4;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kQuads; i += Shape::kThreads) {
      const int row = i / kQuads, quad = i % kQuads;
      const int row_head = row / Shape::kChunk, row_member = row / kWarpRows % Shape::kSharing;
      float x[4] = {};
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
        const int from = (row_head * Shape::kParts + part) * Shape::kSharing + row_member;
        const float4 y = *reinterpret_cast<const float4*>(
            area + (from * kWarpRows + row % kWarpRows) * Shape::kMergePitch + quad * 4);
        x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
      }
      write_row<Shape>(a, segment, row, merged(sums, row_head, row_member, row % kWarpRows),
                       pass * Shape::kMergeColumns + quad * 4, x);
    }
  }
  __syncthreads();
}

}  // namespace hyla::attention::decode
