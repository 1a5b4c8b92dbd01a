// Adds the pieces of items that were cut along the keys, in the order of the keys: a warp a row of
// queries. Nothing to do, and nothing done, where the schedule cut nothing.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_prefill/epilogue.cuh"
#include "ops/attention_prefill/prefill_shape.h"

namespace hyla::attention {

inline constexpr int kCombineWarps = 8;

template <class Shape, class Element, class Arguments>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine_pieces(const __grid_constant__ Arguments a) {
  constexpr int kColumns = Shape::kDim / 32;  // of a lane: pairs, 64 apart
  arch::wait_for_previous_grid();
  const Schedule::Counters counters = *a.schedule.counters;
  if (counters.piece_tiles == kWhole) return;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int tickets = counters.tiles * a.kv_heads;
  const int step = static_cast<int>(gridDim.x) * kCombineWarps;
  for (int unit = static_cast<int>(blockIdx.x) * kCombineWarps + static_cast<int>(threadIdx.x >> 5);
       unit < tickets * Shape::kRows; unit += step) {
    const int ticket = unit / Shape::kRows, row = unit % Shape::kRows;
    const Item item = find_item(a.schedule, a.kv_heads, a.tokens_per_tile, Shape::kKeys, ticket);
    if (item.pieces == 1 || item.piece != 0) continue;
    const QueryRow at = query_row(item, row, a.group, a.tokens_per_tile);
    if (!at.exists) continue;
    // The tickets of an item's pieces go down from that of the first.
    const auto place = [&](int piece) { return std::int64_t{ticket - piece} * Shape::kRows + row; };
    float top = -__builtin_huge_valf(), sum = 0;
    for (int p = 0; p < item.pieces; ++p) top = fmaxf(top, a.partials.rows[place(p)].x);
    float2 values[kColumns / 2] = {};
    for (int p = 0; p < item.pieces; ++p) {
      const float2 part = a.partials.rows[place(p)];
      if (part.x == -__builtin_huge_valf()) continue;
      const float weight = arch::exp2_fast(part.x - top);
      sum += weight * part.y;
      const auto* from =
          reinterpret_cast<const float2*>(a.partials.values + place(p) * Shape::kDim) + lane;
#pragma unroll
      for (int c = 0; c < kColumns / 2; ++c) {
        const float2 x = from[32 * c];
        values[c].x += weight * x.x;
        values[c].y += weight * x.y;
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
