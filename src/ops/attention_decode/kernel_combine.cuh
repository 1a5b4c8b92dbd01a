// Adds up the pieces of queries whose keys several CTAs saw, in the order of the keys.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/attention_decode/finish.cuh"

namespace hyla::attention::decode {

inline constexpr int kCombineRows = 8;  // along y of the grid

// Grid: (CTAs of the decode kernel, kCombineRows); a lane has two columns, a CTA all of a row.
template <class Shape>
__global__ void __launch_bounds__(Shape::D / 2)
    attention_combine(const __grid_constant__ Arguments a) {
  constexpr int kBatch = 8;
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int cta = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) & 31;
  const int4 owner = __ldcg(a.pieces.owners + cta * 2);
  const int pieces = __ldcg(a.pieces.owners + cta * 2 + 1).x;
  // The first piece is this CTA's last, the others are the first of the CTAs that follow.
  const auto slot = [&](int piece) { return piece == 0 ? cta * 2 + 1 : (cta + piece) * 2; };
  const int column = static_cast<int>(threadIdx.x) * 2;
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.y); row < Shape::kRows; row += kCombineRows) {
    const QueryRow query =
        query_row<Shape>(a, owner.x, owner.y, owner.z, pieces > 0 ? owner.w : 0, row);
    if (query.token < 0) continue;
    const auto sums_of = [&](int piece) {
      return piece < pieces ? __ldcg(a.pieces.sums + slot(piece) * Shape::kRows + row)
                            : make_float2(-INFINITY, 0);
    };
    const auto load = [&](float2(&y)[kBatch], int first) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        y[i] = make_float2(0, 0);
        if (first + i < pieces) {
          y[i] = __ldcg(reinterpret_cast<const float2*>(
              a.pieces.values + (slot(first + i) * Shape::kRows + row) * Shape::D + column));
        }
      }
    };
    float2 y[kBatch], after[kBatch];
    load(y, 0);
    float2 own = sums_of(lane);
    Softmax all;
    all.top = own.x;
    for (int piece = lane + 32; piece < pieces; piece += 32) {
      all.top = fmaxf(all.top, sums_of(piece).x);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      all.top = fmaxf(all.top, __shfl_xor_sync(device::kFullWarp, all.top, step));
    }
    float x[2] = {};
#pragma unroll 1
    for (int first = 0; first < pieces; first += kBatch) {
      load(after, first + kBatch);
      if (first > 0 && first % 32 == 0) own = sums_of(first + lane);
      const float share = weight(own.x, all.top), sum = own.y * share;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float w = __shfl_sync(device::kFullWarp, share, first + i);
        x[0] += w * y[i].x, x[1] += w * y[i].y;
        all.sum += __shfl_sync(device::kFullWarp, sum, first + i);
        y[i] = after[i];
      }
    }
    write_out(a.out, query, all, column, x);
  }
}

}  // namespace hyla::attention::decode
