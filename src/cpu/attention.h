// Attention over a cache on vectors and threads, decode and prefill alike.
//
// The queries of a row that share a KV head, (token, head of the group) in this order, are its
// columns. A tile is up to kAttentionColumns of them against a run of keys. Rows of few columns are
// cut along the keys too; their tiles are joined in order by whoever finishes last. The cuts depend
// on the problem alone, so neither threads nor other rows change a bit.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/attention.h"

namespace hyla::cpu {

inline constexpr std::int64_t kAttentionColumns = 32;
inline constexpr std::int64_t kAttentionKeys = 32;    // converted at a time
inline constexpr std::int64_t kAttentionSplit = 512;  // keys of a tile of a row that is cut

struct AttentionTile {
  std::int64_t row, head;      // of the cache
  std::int64_t first, count;   // columns
  attention::KeyRange keys;    // of this tile
  std::int64_t split, splits;  // this one, and how many there are
  std::int64_t partial;        // of the first split; they lie one after another
};

// What a tile of a row that is cut leaves: [columns] maxima, [columns] sums, [columns, DV].
inline std::int64_t partial_floats(const attention::Queries& q) {
  return kAttentionColumns * (2 + (q.value_dim + 15) / 16 * 16);
}

struct AttentionKernels {
  std::int64_t (*scratch_floats)(const attention::RunProblem& p);
  // One tile: its outputs, or its partial where the row is cut.
  void (*run)(const attention::RunProblem& p, const AttentionTile& tile, float* scratch,
              float* partials);
  // The outputs of the columns of a tile out of its partials.
  void (*join)(const attention::RunProblem& p, const AttentionTile& tile, float* partials);
};
const AttentionKernels& attention_kernels(Target target);

void run_attention(Target target, const attention::RunProblem& p, const Context& context);

template <Target kTarget>
const char* attention_refuses(const attention::RunProblem&, const Context&) {
  return refuses(kTarget);
}
template <Target kTarget>
void attend(const attention::RunProblem& p, const Workspace&, const Context& context) {
  run_attention(kTarget, p, context);
}

}  // namespace hyla::cpu
