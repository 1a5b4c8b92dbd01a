// Appends rows as they are at the speed of the memory: a warp has some lines of 32 chunks, asks for
// all of them, finds meanwhile where they go, and stores them.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_append/find_token.cuh"
#include "ops/attention_append/rows.h"

namespace hyla::attention::appending {

inline constexpr int kLines = 4;  // of a warp, of keys and as many of values

struct ChunkPlace {
  int token, head, piece;  // token: counted from the warp's first, less than 32
  bool inside;
};

__device__ __forceinline__ void copy(const Half& half, const Chunk (&data)[kLines],
                                     const ChunkPlace (&chunks)[kLines], const Target& target) {
  const std::int64_t base =
      target.place.somewhere() ? half.to.offset(target.place, 0) * half.size : kNowhere;
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    const ChunkPlace& at = chunks[i];
    const std::int64_t to = __shfl_sync(0xffffffffu, base, at.token);
    if (!at.inside || to == kNowhere) continue;
    data[i].store(static_cast<char*>(half.to.data) + to +
                  at.head * half.to.head_stride * half.size + 16 * at.piece);
  }
}

// Grid: warps' shares of both halves, which are paired, or of the first.
__global__ void __launch_bounds__(32 * kRowWarps, 5)
    copy_rows(const __grid_constant__ RowsArguments a) {
  const Half& half = a.halves[0];  // its chunks are those of the other one in a pair
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first = static_cast<int>(blockIdx.x * kRowWarps + (threadIdx.x >> 5)) * 32 * kLines;
  arch::wait_for_previous_grid();
  if (first >= half.total) return;

  const int first_token = half.by_token(first);
  ChunkPlace chunks[kLines];
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    const int chunk = first + 32 * i + lane, token = half.by_token(chunk);
    const int in_token = chunk - token * half.per_token, head = half.by_head(in_token);
    chunks[i] = {(token - first_token) & 31, head, in_token - head * half.chunks,
                 chunk < half.total};
  }
  Chunk data[2][kLines];
  const auto ask = [&](int i, int source, bool there) {
    const ChunkPlace& at = chunks[i];
    if (!there) return;
    data[0][i].load(half.from + source * half.token_bytes + at.head * half.head_bytes +
                    16 * at.piece);
    if (a.paired) {
      const Half& other = a.halves[1];
      data[1][i].load(other.from + source * other.token_bytes + at.head * other.head_bytes +
                      16 * at.piece);
    }
  };

  RowToken own;
  if (a.in_order()) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) ask(i, first_token + chunks[i].token, chunks[i].inside);
    if (first_token + lane < a.tokens) {
      own = row_of(a, first_token + lane);
    }
  } else {
    own = scan_rows(a, first_token + lane);
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int source = __shfl_sync(0xffffffffu, own.row < 0 ? -1 : own.source, chunks[i].token);
      ask(i, source, source >= 0 && chunks[i].inside);
    }
  }
  const Target target = target_of(a, own);
  copy(half, data[0], chunks, target);
  if (a.paired) copy(a.halves[1], data[1], chunks, target);
}

}  // namespace hyla::attention::appending
