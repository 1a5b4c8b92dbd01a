#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

namespace hyla::cpu {
namespace {

using attention::KeyRange;
using attention::Queries;

// What the columns [first, first + count) of a row see together.
KeyRange keys_of(const Queries& q, std::int64_t row, std::int64_t keys, std::int64_t first,
                 std::int64_t count) {
  const std::int64_t group = q.query_heads / q.kv_heads;
  const std::int64_t position = keys - q.length(row);
  const std::int64_t last = first + count - 1;
  KeyRange all{0, 0};
  for (std::int64_t token = first / group; token <= last / group; ++token) {
    const KeyRange own = q.mask.visible(position + token, keys);
    if (own.begin >= own.end) continue;
    all.begin = all.end == 0 ? own.begin : std::min(all.begin, own.begin);
    all.end = std::max(all.end, own.end);
  }
  return all;
}

struct Plan {
  std::vector<AttentionTile> tiles;
  std::int64_t partials = 0;
};

Plan plan_tiles(const attention::RunProblem& p) {
  const Queries& q = p.queries;
  const std::int64_t group = q.query_heads / q.kv_heads;
  Plan plan;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t columns = q.length(row) * group, keys = p.cache.length(row);
    // The longest first: what is left at the end is short.
    const std::int64_t blocks = (columns + kAttentionColumns - 1) / kAttentionColumns;
    for (std::int64_t block = blocks - 1; block >= 0; --block) {
      const std::int64_t first = block * kAttentionColumns;
      const std::int64_t count = std::min(kAttentionColumns, columns - first);
      const KeyRange seen = keys_of(q, row, keys, first, count);
      const std::int64_t length = seen.end - seen.begin;
      std::int64_t splits = 1;
      if (columns <= kAttentionColumns) {
        splits = std::max<std::int64_t>(1, (length + kAttentionSplit - 1) / kAttentionSplit);
      }
      for (std::int64_t head = 0; head < q.kv_heads; ++head) {
        for (std::int64_t i = 0; i < splits; ++i) {
          KeyRange own = seen;
          if (splits > 1) {
            own.begin = seen.begin + i * kAttentionSplit;
            own.end = std::min(seen.end, own.begin + kAttentionSplit);
          }
          plan.tiles.push_back({row, head, first, count, own, i, splits, plan.partials});
        }
        if (splits > 1) plan.partials += splits;
      }
    }
  }
  return plan;
}

}  // namespace

void run_attention(Target target, const attention::RunProblem& p, const Context& context) {
  const AttentionKernels& kernels = attention_kernels(target);
  const Plan plan = plan_tiles(p);
  const auto tiles = static_cast<std::int64_t>(plan.tiles.size());
  if (tiles == 0) return;
  const auto partial = static_cast<std::size_t>(partial_floats(p.queries));
  const auto partials = static_cast<std::size_t>(plan.partials);
  const std::unique_ptr<float[]> left(new float[partials * partial]);
  // How many splits of a tile are done, at the place of its first partial.
  const std::unique_ptr<std::atomic<std::int64_t>[]> done(
      new std::atomic<std::int64_t>[partials]());
  const int parts = static_cast<int>(std::min<std::int64_t>(tiles, thread_count(context)));
  const auto own = static_cast<std::size_t>(kernels.scratch_floats(p));
  const std::unique_ptr<float[]> scratch(new float[own * static_cast<std::size_t>(parts)]);
  parallel_for(context, parts, [&](int part) {
    float* mine = scratch.get() + own * static_cast<std::size_t>(part);
    for (std::int64_t i = part; i < tiles; i += parts) {
      const AttentionTile& tile = plan.tiles[static_cast<std::size_t>(i)];
      kernels.run(p, tile, mine, left.get());
      if (tile.splits == 1) continue;
      if (done[static_cast<std::size_t>(tile.partial)].fetch_add(1) == tile.splits - 1) {
        kernels.join(p, tile, left.get());
      }
    }
  });
}

}  // namespace hyla::cpu
