// Which walk a CTA has where there are more of them than multiprocessors and sequences differ: the
// longest first, so that none of them starts when the others are nearly through. CTAs start in the
// order of their numbers, or nearly so; what is computed does not depend on it. All blocks of value
// rows of a head are neighbours, so keys, queries and records that they share come from L2.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/long_rows.cuh"

namespace hyla::gdn {

inline constexpr int kOrderedRows = 512;  // more sequences than this are walked over as they come

struct WalkPlace {
  int pair, block;  // head of a sequence, and which of gridDim.y blocks
};

// By all threads of the CTA. `scratch` is room for kOrderedRows + 1 numbers, and free again.
__device__ __forceinline__ WalkPlace ordered_place(const FusedArguments& a, void* scratch) {
  const int x = static_cast<int>(blockIdx.x), y = static_cast<int>(blockIdx.y);
  auto* const lengths = static_cast<int*>(scratch);
  int& found = lengths[kOrderedRows];
  const int rows = static_cast<int>(a.p.sequences.rows), heads = static_cast<int>(a.p.heads);
  const int groups = static_cast<int>(gridDim.y);
  const int index = y * static_cast<int>(gridDim.x) + x;
  const int at = index / groups, wanted = a.by_heads(at);
  const int own = own_thread(), threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int row = own; row < rows; row += threads) {
    int begin, length;
    find_tokens(a.p, row, begin, length);
    lengths[row] = a.p.slots.read_slot(row) == core::kNullSlot ? 0 : length;
  }
  __syncthreads();
#pragma unroll 1
  for (int row = own; row < rows; row += threads) {
    const int length = lengths[row];
    int rank = 0;
#pragma unroll 1
    for (int other = 0; other < rows; ++other) {
      rank += lengths[other] > length || (lengths[other] == length && other < row);
    }
    if (rank == wanted) found = row;
  }
  __syncthreads();
  const WalkPlace place{found * heads + at - wanted * heads, index - at * groups};
  __syncthreads();
  return place;
}

__device__ __forceinline__ WalkPlace unordered_place() {
  return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y)};
}

}  // namespace hyla::gdn
