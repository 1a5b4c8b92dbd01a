#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "cpu/kept_memory.h"

namespace hyla::cpu {
namespace {

using attention::KeyRange;
using attention::Queries;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

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

// A row of all heads lies in one piece where tokens come before heads, and memory is read fastest
// in pieces; but the outputs under way must stay in the L1 cache, and every thread wants work. Where
// requests are lost in crowds pieces matter more (8 heads of 128 numbers, Zen 5: 1.5 times as fast).
// Heads do not know of each other: however many go together, the bits are the same.
std::int64_t heads_together(const Queries& q, std::int64_t columns, std::int64_t splits,
                            int threads) {
  const std::int64_t outputs = drops_crowds() ? 8192 : 4096;
  std::int64_t heads =
      std::clamp<std::int64_t>(outputs / (divide_up(columns, 4) * 4 * q.value_dim), 1, q.kv_heads);
  while (heads > 1 && q.rows * splits * divide_up(q.kv_heads, heads) < 2 * threads) {
    heads = divide_up(heads, 2);
  }
  return heads;
}

// Keys of a part of a row that is cut. Every part costs something at both ends: longer ones where
// there are parts enough for any machine, but not where a row's bits must not depend on others.
std::int64_t keys_of_parts(const attention::RunProblem& p, const Context& context) {
  constexpr std::int64_t kKeys = 1024, kManyParts = 256;
  std::int64_t parts = 0;
  for (std::int64_t row = 0; row < p.queries.rows; ++row) {
    parts += p.cache.length(row) / kKeys * p.queries.kv_heads;
  }
  return parts >= kManyParts && !context.batch_invariant ? 2 * kKeys : kKeys;
}

struct Totals {
  std::int64_t tiles = 0, partials = 0, joins = 0, heads = 1;
};

// Calls visit(tile) for all tiles of all rows.
template <class Visit>
Totals for_each_tile(const attention::RunProblem& p, const AttentionKernels& kernels,
                     const Context& context, const Visit& visit) {
  const int threads = thread_count(context);
  const std::int64_t part = keys_of_parts(p, context);
  const Queries& q = p.queries;
  const std::int64_t group = q.query_heads / q.kv_heads;
  Totals totals;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t columns = q.length(row) * group, keys = p.cache.length(row);
    const std::int64_t block_columns = kernels.block_columns(p, columns);
    // The longest first: what is left at the end is short.
    const std::int64_t blocks = divide_up(columns, block_columns);
    for (std::int64_t block = blocks - 1; block >= 0; --block) {
      AttentionTile tile{};
      tile.row = row;
      tile.first = block * block_columns;
      tile.count = std::min(block_columns, columns - tile.first);
      const KeyRange seen = keys_of(q, row, keys, tile.first, tile.count);
      tile.splits = 1;
      if (blocks == 1) {
        tile.splits = std::max<std::int64_t>(1, divide_up(seen.end - seen.begin, part));
      }
      const bool streamed = blocks == 1 && tile.streamed();
      const std::int64_t heads = streamed ? heads_together(q, columns, tile.splits, threads) : 1;
      totals.heads = std::max(totals.heads, heads);
      for (tile.head = 0; tile.head < q.kv_heads; tile.head += heads) {
        tile.heads = std::min(heads, q.kv_heads - tile.head);
        tile.partials = totals.partials;
        tile.join = totals.joins;
        for (tile.split = 0; tile.split < tile.splits; ++tile.split) {
          tile.keys = seen;
          if (tile.splits > 1) {
            tile.keys.begin = seen.begin + tile.split * part;
            tile.keys.end = std::min(seen.end, tile.keys.begin + part);
          }
          visit(tile, totals.tiles++);
        }
        if (tile.splits == 1) continue;
        totals.partials += tile.heads * tile.splits * partial_floats(q, tile.count);
        ++totals.joins;
      }
    }
  }
  return totals;
}

// A thread's: so many are left for others before it takes one early.
constexpr std::int64_t kSpareTiles = 2;

// Consecutive arrays in one piece of memory, each at the start of a cache line.
struct Layout {
  std::size_t bytes = 0;
  std::size_t add(std::int64_t count, std::size_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(count) * size + 63) / 64 * 64;
    return at;
  }
};

}  // namespace

const char* attention_amx_refuses(const attention::RunProblem& p) {
  if (p.queries.q.dtype != DType::kBFloat16) return "AMX takes bfloat16 queries";
  if (p.queries.head_dim % 32 != 0) return "AMX takes heads of a multiple of 32";
  return nullptr;
}

void run_attention(Target target, const attention::RunProblem& p, const Context& context) {
  const AttentionKernels& kernels = attention_kernels(target);
  const int threads = thread_count(context);
  const Totals totals =
      for_each_tile(p, kernels, context, [](const AttentionTile&, std::int64_t) {});
  if (totals.tiles == 0) return;
  const int parts = static_cast<int>(std::min<std::int64_t>(totals.tiles, threads));
  const std::int64_t own = divide_up(kernels.scratch_floats(p, totals.heads), 16) * 16;

  Layout layout;
  const std::size_t tiles_at = layout.add(totals.tiles, sizeof(AttentionTile));
  const std::size_t done_at = layout.add(totals.joins, sizeof(std::atomic<std::int64_t>));
  const std::size_t partials_at = layout.add(totals.partials, sizeof(float));
  const std::size_t scratch_at = layout.add(own * parts, sizeof(float));
  const KeptMemory memory(layout.bytes);
  const auto at = [&](std::size_t offset) { return static_cast<char*>(memory.data()) + offset; };
  auto* tiles = reinterpret_cast<AttentionTile*>(at(tiles_at));
  // How many parts of a row that is cut are done.
  auto* done = reinterpret_cast<std::atomic<std::int64_t>*>(at(done_at));
  auto* partials = reinterpret_cast<float*>(at(partials_at));
  auto* scratch = reinterpret_cast<float*>(at(scratch_at));
  for (std::int64_t i = 0; i < totals.joins; ++i) new (done + i) std::atomic<std::int64_t>(0);
  for_each_tile(p, kernels, context, [&](const AttentionTile& tile, std::int64_t i) {
    new (tiles + i) AttentionTile(tile);
  });

  std::atomic<std::int64_t> taken{0};
  parallel_for(context, parts, [&](int part) {
    float* mine = scratch + own * part;
    std::int64_t next = taken.fetch_add(1);
    while (next < totals.tiles) {
      const AttentionTile& tile = tiles[next];
      // Taken early its keys can be asked for; at the end tiles go to those who are done.
      const bool early = tile.streamed() && next + kSpareTiles * parts < totals.tiles;
      next = early ? taken.fetch_add(1) : totals.tiles;
      kernels.run(p, tile, next < totals.tiles ? tiles + next : nullptr, mine, partials);
      if (!early) next = taken.fetch_add(1);
      if (tile.splits == 1) continue;
      if (done[tile.join].fetch_add(1) == tile.splits - 1) kernels.join(p, tile, partials);
    }
  });
}

}  // namespace hyla::cpu
