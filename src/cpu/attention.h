// Attention over a cache on vectors and threads, decode and prefill alike.
//
// The queries of a row that share a KV head, (token, head of the group) in this order, are its
// columns. A row of few columns is streamed: its keys and values pass once through registers. Other
// rows are cut into blocks of columns. Rows that are a single block are cut along the keys too;
// whoever finishes last joins the parts in order. The cuts depend on the row alone, so neither
// threads nor other rows change a bit.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/attention.h"

namespace hyla::cpu {

inline constexpr std::int64_t kStreamColumns = 16;  // at most
// More for every key and value that is brought near, where that pays.
inline constexpr std::int64_t kBlockColumns = 64, kLargeBlockColumns = 128, kMostBlockColumns = 512;
// Columns of a row that has enough blocks of any size; shorter ones go by small blocks.
inline constexpr std::int64_t kLongRow = 1024;

struct AttentionTile {
  std::int64_t row;
  std::int64_t head, heads;    // of the cache; several only where a row is streamed
  std::int64_t first, count;   // columns
  attention::KeyRange keys;    // of this part
  std::int64_t split, splits;  // this one, and how many there are
  std::int64_t partials;       // floats before those of this tile's first head and part
  std::int64_t join;           // which counter

  bool streamed() const { return count <= kStreamColumns; }
};

// What a part leaves of one head: [count] maxima, [count] sums, [count, stride] outputs.
inline std::int64_t partial_stride(const attention::Queries& q) {
  return (q.value_dim + 31) / 32 * 32;
}
inline std::int64_t partial_floats(const attention::Queries& q, std::int64_t count) {
  return count * (2 + partial_stride(q));
}

struct AttentionKernels {
  // Of a block, at most, of a row that has `columns`.
  std::int64_t (*block_columns)(const attention::RunProblem& p, std::int64_t columns);
  // What a thread needs for any tile of up to so many heads.
  std::int64_t (*scratch_floats)(const attention::RunProblem& p, std::int64_t heads);
  // One tile: its outputs, or its partials where the row is cut. `next`: what the thread does
  // then, where that is known.
  void (*run)(const attention::RunProblem& p, const AttentionTile& tile, const AttentionTile* next,
              float* scratch, float* partials);
  // The outputs of a tile's columns out of the partials of all parts.
  void (*join)(const attention::RunProblem& p, const AttentionTile& tile, float* partials);
};
const AttentionKernels& attention_kernels(Target target);

void run_attention(Target target, const attention::RunProblem& p, const Context& context);
const char* attention_amx_refuses(const attention::RunProblem& p);

}  // namespace hyla::cpu
