// Adds up the pieces of queries whose keys several CTAs saw, always in the same order.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/attention_decode/finish.cuh"

namespace hyla::attention::decode {

inline constexpr int kCombineRows = 8;  // along y of the grid
inline constexpr int kCombineThreads = 256;

// Grid: (CTAs of the decode kernel, kCombineRows). A thread has four columns; slices of a CTA take pieces in turns.
template <class Shape>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine(const __grid_constant__ Arguments a) {
  constexpr int kLanes = Shape::D / 4, kSlices = kCombineThreads / kLanes;
  __shared__ float4 values[kSlices][kLanes];
  __shared__ float sums[kSlices];
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int cta = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int4 owner = __ldcg(a.pieces.owners + cta * 2);
  const int pieces = __ldcg(a.pieces.owners + cta * 2 + 1).x;
  if (pieces == 0) return;
  // The first piece is this CTA's last, the others are the first of the CTAs that follow.
  const auto place = [&](int piece, int row) {
    return (piece == 0 ? cta * 2 + 1 : (cta + piece) * 2) * Shape::kRows + row;
  };
  const int slice = thread / kLanes, column = thread % kLanes * 4;
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.y); row < Shape::kRows; row += kCombineRows) {
    const QueryRow query = query_row<Shape>(a, owner.x, owner.y, owner.z, owner.w, row);
    if (query.token < 0) continue;
    Softmax all;
    for (int piece = thread & 31; piece < pieces; piece += 32) {
      all.top = fmaxf(all.top, __ldcg(a.pieces.sums + place(piece, row)).x);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      all.top = fmaxf(all.top, __shfl_xor_sync(device::kFullWarp, all.top, step));
    }
    float x[4] = {};
#pragma unroll 4
    for (int piece = slice; piece < pieces; piece += kSlices) {
      const int at = place(piece, row);
      const float2 own = __ldcg(a.pieces.sums + at);
      const float4 y =
          __ldcg(reinterpret_cast<const float4*>(a.pieces.values + at * Shape::D + column));
      const float factor = weight(own.x, all.top);
      all.sum += factor * own.y;
      x[0] += factor * y.x, x[1] += factor * y.y, x[2] += factor * y.z, x[3] += factor * y.w;
    }
    values[slice][thread % kLanes] = make_float4(x[0], x[1], x[2], x[3]);
    if (column == 0) sums[slice] = all.sum;
    __syncthreads();
    if (slice == 0) {
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        const float4 y = values[other][thread];
        x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
        all.sum += sums[other];
      }
      write_out(a.out, query, all, column, x);
    }
    __syncthreads();
  }
}

}  // namespace hyla::attention::decode
