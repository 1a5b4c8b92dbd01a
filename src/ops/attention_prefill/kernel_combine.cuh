// Adds the pieces of items that were cut along the keys, in the order of the keys: a warp a row of
// queries. Nothing to do, and nothing done, where the schedule cut nothing.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/largest.cuh"
#include "ops/attention_prefill/epilogue.cuh"
#include "ops/attention_prefill/prefill_shape.h"

namespace hyla::attention {

inline constexpr int kCombineWarps = 8, kCombineSlices = 8;  // CTAs of a ticket

// Grid: (tickets, kCombineSlices).
template <class Shape, class Element, class Arguments>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine_pieces(const __grid_constant__ Arguments a) {
  constexpr int kColumns = Shape::kDim / 32;  // of a lane: pairs, 64 apart
  arch::wait_for_previous_grid();
  if (a.schedule.counters->piece_tiles == kWhole) return;
  const int lane = static_cast<int>(threadIdx.x) & 31, ticket = static_cast<int>(blockIdx.x);
  const Item item = find_item(a.schedule, a.kv_heads, a.tokens_per_tile, Shape::kKeys, ticket);
  if (!item.exists() || item.pieces == 1 || item.piece != 0) return;
  for (int row = static_cast<int>(blockIdx.y) * kCombineWarps + static_cast<int>(threadIdx.x >> 5);
       row < Shape::kRows; row += kCombineSlices * kCombineWarps) {
    const QueryRow at = query_row(item, row, a.group, a.tokens_per_tile);
    if (!at.exists) continue;
    // The tickets of an item's pieces, 32 at most, go down from that of the first. A lane has one.
    const auto place = [&](int piece) { return std::int64_t{ticket - piece} * Shape::kRows + row; };
    float2 part{-__builtin_huge_valf(), 0.0f};
    if (lane < item.pieces) part = a.partials.rows[place(lane)];
    const float top = device::largest_of_lanes<32>(part.x);
    const float weight = part.x == -__builtin_huge_valf() ? 0.0f : arch::exp2_fast(part.x - top);
    const float sum = device::sum_lanes<32>(weight * part.y);
    float2 values[kColumns / 2] = {};
#pragma unroll 4
    for (int p = 0; p < item.pieces; ++p) {
      const float share = __shfl_sync(0xffffffffu, weight, p);
      const auto* from =
          reinterpret_cast<const float2*>(a.partials.values + place(p) * Shape::kDim) + lane;
#pragma unroll
      for (int c = 0; c < kColumns / 2; ++c) {
        const float2 x = from[32 * c];
        values[c].x += share * x.x;
        values[c].y += share * x.y;
      }
    }
    const int head = item.head * a.group + at.group_head;
    const std::int64_t token = item.begin + at.token;
    const FinishedRow done = finish_sums(a, head, true, top, sum);
    if (a.lse != nullptr && lane == 0) {
      a.lse[token * a.lse_token_stride + head * a.lse_head_stride] = done.logarithm;
    }
    auto* out = reinterpret_cast<std::uint32_t*>(
        static_cast<Element*>(a.out) + token * a.out_token_stride + head * a.out_head_stride);
#pragma unroll
    for (int c = 0; c < kColumns / 2; ++c) {
      if (64 * c + 2 * lane < a.value_dim) {
        out[32 * c + lane] = packed<Element>(values[c].x * done.share, values[c].y * done.share);
      }
    }
  }
}

}  // namespace hyla::attention
