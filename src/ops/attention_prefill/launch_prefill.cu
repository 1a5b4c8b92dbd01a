#include "ops/attention_prefill/launch_prefill.h"

#include "device/alignment.h"
#include "ops/attention/factors.h"
#include "ops/attention/padded_dim.h"
#include "ops/attention_prefill/launch_bytes_instances.h"
#include "ops/attention_prefill/launch_instances.h"
#include "ops/attention_prefill/launch_widened.cuh"

namespace hyla::attention {
namespace {

// Rows can be copied `bytes` at a time.
bool aligned_rows(const KvRows& rows, std::int64_t bytes) {
  return device::aligned(rows.values, bytes) && rows.outer_bytes % bytes == 0 &&
         rows.token_bytes % bytes == 0 && rows.head_bytes % bytes == 0;
}

bool one_byte(const CacheView& cache) { return size_of(cache.k.dtype) == 1; }

// Eight values that are loaded together have one scale.
const char* scales_refuse(const TensorView& values, const TensorView& scales) {
  if (!scales.present()) return nullptr;
  if (values.shape[values.rank - 1] / scales.shape[scales.rank - 1] % 8 != 0) {
    return "scales of fewer than eight values";
  }
  return nullptr;
}

// Groups of eight rows that lie together, wherever a tile starts.
bool has_groups(const CacheView& cache, const KvRows& rows) {
  return rows.outer_rows != 0 && (cache.kind != KvCache::Kind::kPaged || rows.tokens % 8 == 0);
}

RowsTensor tensor_of(const CacheView& cache, const KvRows& rows, const TensorView& values,
                     int kernel_dim) {
  if (!has_groups(cache, rows)) return {};
  const auto size = static_cast<std::int64_t>(size_of(values.dtype));
  const int last = values.rank - 1;
  const std::int64_t count =
      rows.outers < 1 ? 0 : (rows.outers - 1) * rows.outer_rows + rows.tokens;
  const bool sixteens = cache.kind != KvCache::Kind::kRagged && rows.tokens % 16 == 0;
  return rows_tensor({values.data, values.dtype, count, rows.token_bytes / size,
                      values.shape[last - 1], rows.head_bytes / size, values.shape[last], sixteens},
                     kernel_dim);
}

BuiltInLaunch* instance(DType dtype, std::int64_t dim) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (padded_dim(dim)) {
    case 64:
      return bf16 ? launch_tile<__nv_bfloat16, 64, KvRows, KvRows>
                  : launch_tile<__half, 64, KvRows, KvRows>;
    case 128:
      return bf16 ? launch_tile<__nv_bfloat16, 128, KvRows, KvRows>
                  : launch_tile<__half, 128, KvRows, KvRows>;
    default:
      return bf16 ? launch_tile<__nv_bfloat16, 256, KvRows, KvRows>
                  : launch_tile<__half, 256, KvRows, KvRows>;
  }
}

BytesLaunch* bytes_instance(DType dtype, std::int64_t dim) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (padded_dim(dim)) {
    case 64:
      return bf16 ? launch_bytes<__nv_bfloat16, 64, ByteRows, ByteRows>
                  : launch_bytes<__half, 64, ByteRows, ByteRows>;
    case 128:
      return bf16 ? launch_bytes<__nv_bfloat16, 128, ByteRows, ByteRows>
                  : launch_bytes<__half, 128, ByteRows, ByteRows>;
    default:
      return bf16 ? launch_bytes<__nv_bfloat16, 256, ByteRows, ByteRows>
                  : launch_bytes<__half, 256, ByteRows, ByteRows>;
  }
}

WidenedLaunch* widened_instance(DType dtype, std::int64_t dim) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (padded_dim(dim)) {
    case 64:
      return bf16 ? launch_widened<__nv_bfloat16, 64> : launch_widened<__half, 64>;
    case 128:
      return bf16 ? launch_widened<__nv_bfloat16, 128> : launch_widened<__half, 128>;
    default:
      return bf16 ? launch_widened<__nv_bfloat16, 256> : launch_widened<__half, 256>;
  }
}

// Behind the schedule and the pieces.
std::int64_t widened_at(std::int64_t rows, std::int64_t dim, int processors) {
  return schedule_room(rows) + (pieces_bytes(dim, processors) + 255) / 256 * 256;
}

// Who computes the rows of a cache of one byte a value.
struct BytesPlan {
  WidenedMemory widened;
  bool all_widened = false, none_widened = true;
};

std::int64_t packed_queries(const Queries& q) {
  return q.q.shape[0] * (q.query_heads / q.kv_heads);
}

// Lengths are on the device: the host knows what rows have room for, and how many queries there are
// together.
BytesPlan bytes_plan(const Queries& q, const TileLaunch& launch) {
  BytesPlan plan;
  const bool long_rows = packed_queries(q) >= kWidenedQueries * q.rows;
  const WidenedRoom room{q.kv_heads, q.head_dim, q.value_dim};
  const std::int64_t at = widened_at(q.rows, std::max(q.head_dim, q.value_dim), launch.processors);
  plan.widened.tiles = room.tiles(q.rows, static_cast<std::int64_t>(launch.bytes) - at);
  if (plan.widened.tiles == 0) return plan;
  plan.widened.regions = reinterpret_cast<Region*>(static_cast<char*>(launch.workspace) + at);
  plan.none_widened = false;
  plan.all_widened = long_rows && launch.more_than == 0 &&
                     launch.most_keys <= plan.widened.tiles * room.tile_keys() / q.rows &&
                     q.rows * room.tiles_of(launch.most_keys) <= plan.widened.tiles;
  plan.widened.least = plan.all_widened ? 0 : kWidenedQueries;
  return plan;
}

void launch_over_bytes(const Queries& q, const CacheView& cache, bool widens, TileLaunch launch,
                       const Context& context) {
  ByteRows keys = byte_rows(cache, cache.k, cache.k_scales);
  ByteRows values = byte_rows(cache, cache.v, cache.v_scales);
  keys.sixteens = values.sixteens = q.head_dim % 16 == 0 && q.value_dim % 16 == 0 &&
                                    aligned_rows(keys, 16) && aligned_rows(values, 16);
  const std::int64_t dim = std::max(q.head_dim, q.value_dim);
  const BytesPlan plan = widens ? bytes_plan(q, launch) : BytesPlan();
  if (!plan.none_widened) {
    widened_instance(q.q.dtype, dim)(q, keys, values, plan.widened, launch, context);
    if (plan.all_widened) return;
    keys.widened = plan.widened.regions;
  }
  bytes_instance(q.q.dtype, dim)(q, keys, values, launch, context);
}

}  // namespace

std::int64_t most_keys(const CacheView& cache) {
  if (cache.kind == KvCache::Kind::kPaged) return cache.page_table.columns * cache.page_size();
  return cache.k.shape[cache.kind == KvCache::Kind::kRagged ? 0 : 1];
}

const char* attention_prefill_refuses(const RunProblem& problem, const Context& context) {
  const CacheView& cache = problem.cache;
  if (const char* reason = tile_refuses(problem.queries)) return reason;
  if (!has_factors(problem.queries)) return kNeedsFactors;
  if (!one_byte(cache) && cache.k.dtype != problem.queries.q.dtype) {
    return "takes caches of the queries' dtype, float8_e4m3 and int8";
  }
  if (const char* reason = scales_refuse(cache.k, cache.k_scales)) return reason;
  if (const char* reason = scales_refuse(cache.v, cache.v_scales)) return reason;
  if (cache.kind == KvCache::Kind::kPaged && most_keys(cache) > kMostKeys) {
    return "more keys a row than 2^30";
  }
  const std::int64_t bytes = one_byte(cache) ? 8 : 16;
  if (!aligned_rows(kv_rows(cache, cache.k), bytes) ||
      !aligned_rows(kv_rows(cache, cache.v), bytes)) {
    return "keys or values that are not aligned to 16 bytes";
  }
  return device::refuses_device(context);
}

// Rows whose bits are their own must not depend on the room.
const char* widening_refuses(const RunProblem& problem, const Context& context) {
  const Queries& q = problem.queries;
  if (!one_byte(problem.cache)) return "takes caches of one byte a value";
  if (context.batch_invariant) return "bits that depend on the lengths of other rows";
  const bool alike = q.rows == 0 || q.q.shape[0] % q.rows == 0;
  if (packed_queries(q) < kWidenedQueries * (alike ? std::max<std::int64_t>(q.rows, 1) : 1)) {
    return "no row of 512 queries, heads of a group counted";
  }
  return nullptr;
}

std::size_t attention_prefill_workspace_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(Schedule::bytes(rows));
}

std::size_t attention_prefill_workspace_bound(const RunBounds& bounds, int processors) {
  const std::int64_t dim = std::max<std::int64_t>({bounds.head_dim, bounds.value_dim, 1});
  if (dim > 256) return attention_prefill_workspace_bytes(bounds.max_sequences);
  const std::int64_t group = bounds.query_heads / std::max<std::int64_t>(bounds.kv_heads, 1);
  if (size_of(bounds.cache) == 1 && bounds.max_tokens * group >= kWidenedQueries &&
      bounds.kv_heads > 0) {
    // A row of all keys beside prompts of all tokens, each of whose ends leaves a tile half empty;
    // or as many rows of all keys as kWidenedBytes hold.
    const WidenedRoom room{bounds.kv_heads, bounds.head_dim, bounds.value_dim};
    const std::int64_t rows =
        std::min(bounds.max_sequences, bounds.max_tokens * group / kWidenedQueries);
    const std::int64_t row_tiles =
        std::min<std::int64_t>(room.tiles_of(bounds.max_kv_length), kMostWidenedTiles);
    const std::int64_t at_least = room.tiles_of(bounds.max_tokens) + row_tiles + rows;
    const std::int64_t tiles =
        std::max(at_least, std::min(rows * row_tiles, room.tiles(0, kWidenedBytes)));
    return static_cast<std::size_t>(
        widened_at(bounds.max_sequences, dim, processors) +
        room.bytes(bounds.max_sequences, std::min(tiles, room.tiles(0, kMostWidenedBytes))));
  }
  if (bounds.max_kv_length < 2 * kLeastPieceTiles * 64) {
    return attention_prefill_workspace_bytes(bounds.max_sequences);
  }
  return static_cast<std::size_t>(schedule_room(bounds.max_sequences) +
                                  pieces_bytes(dim, processors));
}

void launch_attention_prefill(const RunProblem& problem, std::int64_t more_than, bool widens,
                              const Workspace& workspace, const Context& context) {
  const Queries& q = problem.queries;
  if (q.rows == 0 || q.q.shape[0] == 0) return;
  const CacheView& cache = problem.cache;
  const std::int64_t dim = std::max(q.head_dim, q.value_dim);
  TileLaunch launch;
  launch.more_than = more_than;
  launch.workspace = workspace.data;
  launch.bytes = workspace.bytes;
  launch.processors = device::multiprocessors(context);
  launch.most_keys = most_keys(cache);
  if (one_byte(cache)) {
    launch_over_bytes(q, cache, widens, launch, context);
    return;
  }
  const KvRows keys = kv_rows(cache, cache.k), values = kv_rows(cache, cache.v);
  const int kernel_dim = padded_dim(dim);
  instance(q.q.dtype, dim)(q, keys, tensor_of(cache, keys, cache.k, kernel_dim), values,
                           tensor_of(cache, values, cache.v, kernel_dim), launch, context);
}

}  // namespace hyla::attention
