// Which tokens a CTA appends, and where they go.
#pragma once

#include <hyla/attention_rows_kernel.h>

#include "ops/attention_append/slots.h"

namespace hyla::attention::appending {

using rows::kThreads, rows::kWarps;
inline constexpr int kTileTokens = 32;

struct Arguments {
  AppendProblem problem;
  CachePlaces places;
  CacheTensor k, v, k_scales, v_scales;

  explicit Arguments(const AppendProblem& p)
      : problem(p),
        places(p.cache),
        k(p.cache.k, p.cache.kind),
        v(p.cache.v, p.cache.kind),
        k_scales(p.cache.k_scales, p.cache.kind),
        v_scales(p.cache.v_scales, p.cache.kind) {}
};

// In shared memory.
struct TokenTile {
  std::int64_t first;  // token of the input
  int count;
  Place places[kTileTokens];
  std::int64_t positions[kTileTokens];
};

// Grid: tiles of kTileTokens tokens that bring their slots along.
__device__ inline void read_slots(const Arguments& a, TokenTile& tile) {
  const AppendProblem& p = a.problem;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTileTokens, left = p.k.shape[0] - first;
  const int thread = static_cast<int>(threadIdx.x);
  const int count = left < kTileTokens ? static_cast<int>(left < 0 ? 0 : left) : kTileTokens;
  if (thread == 0) tile.first = first, tile.count = count;
  if (thread < count) {
    tile.positions[thread] = p.positions.present() ? p.positions.at(first + thread) : -1;
    tile.places[thread] = place_of_slot(a.places, p.slots.at(first + thread));
  }
  __syncthreads();
}

// Grid: tiles of kTileTokens tokens of one row.
__device__ inline void find_tokens(const Arguments& a, TokenTile& tile) {
  if (a.problem.slots.present()) return read_slots(a, tile);
  const core::Sequences& sequences = a.problem.sequences;
  const std::int64_t total = a.problem.k.shape[0];
  const auto length = [&](std::int64_t row) {
    const std::int64_t begin = sequences.begin(row), count = sequences.length(row);
    if (begin < 0 || begin > total || count < 0) return std::int64_t{0};
    return count < total - begin ? count : total - begin;
  };
  const rows::RowPart at = rows::find_part(sequences.rows, blockIdx.x, [&](std::int64_t row) {
    return (length(row) + kTileTokens - 1) / kTileTokens;
  });
  const int thread = static_cast<int>(threadIdx.x);
  if (at.row >= 0 && thread < kTileTokens) {
    const std::int64_t in_row = at.part * kTileTokens, added = length(at.row);
    if (thread == 0) {
      tile.first = sequences.begin(at.row) + in_row;
      tile.count = static_cast<int>(added - in_row < kTileTokens ? added - in_row : kTileTokens);
    }
    const std::int64_t position = a.places.raw_length(at.row) - added + in_row + thread;
    const bool inside =
        in_row + thread < added && position >= 0 && position < a.places.capacity(at.row);
    tile.positions[thread] = position;
    tile.places[thread] = inside ? a.places.place(at.row, position) : Place{-1, 0};
  } else if (at.row < 0 && thread == 0) {
    tile.count = 0;
  }
  __syncthreads();
}

}  // namespace hyla::attention::appending
