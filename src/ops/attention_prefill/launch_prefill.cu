#include "ops/attention_prefill/launch_prefill.h"

#include "device/alignment.h"
#include "ops/attention_prefill/launch_instances.h"

namespace hyla::attention {
namespace {

// Rows can be copied 16 bytes at a time.
bool aligned_rows(const KvRows& rows) {
  return device::aligned(rows.values, 16) && rows.outer_bytes % 16 == 0 &&
         rows.token_bytes % 16 == 0 && rows.head_bytes % 16 == 0;
}

// Groups of eight rows that lie together, wherever a tile starts.
bool has_groups(const CacheView& cache, const KvRows& rows) {
  return rows.outer_rows != 0 && (cache.kind != KvCache::Kind::kPaged || rows.tokens % 8 == 0);
}

RowsTensor tensor_of(const CacheView& cache, const KvRows& rows, const TensorView& values) {
  if (!has_groups(cache, rows)) return {};
  const auto size = static_cast<std::int64_t>(size_of(values.dtype));
  const int last = values.rank - 1;
  const std::int64_t count =
      rows.outers < 1 ? 0 : (rows.outers - 1) * rows.outer_rows + rows.tokens;
  const bool sixteens = cache.kind != KvCache::Kind::kRagged && rows.tokens % 16 == 0;
  return rows_tensor({values.data, values.dtype, count, rows.token_bytes / size,
                      values.shape[last - 1], rows.head_bytes / size, values.shape[last],
                      sixteens});
}

BuiltInLaunch* instance(DType dtype, std::int64_t dim) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (padded_dim(static_cast<int>(dim))) {
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

}  // namespace

const char* attention_prefill_refuses(const RunProblem& problem, const Context& context) {
  const CacheView& cache = problem.cache;
  if (const char* reason = tile_refuses(problem.queries)) return reason;
  if (cache.quantised() || cache.k.dtype != problem.queries.q.dtype) {
    return "takes caches of the queries' dtype";
  }
  if (cache.kind == KvCache::Kind::kPaged &&
      cache.page_table.columns * cache.page_size() > kMostKeys) {
    return "more keys a row than 2^30";
  }
  if (!aligned_rows(kv_rows(cache, cache.k)) || !aligned_rows(kv_rows(cache, cache.v))) {
    return "keys or values that are not aligned to 16 bytes";
  }
  return device::refuses_device(context);
}

std::size_t attention_prefill_workspace_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(Schedule::bytes(rows));
}

void launch_attention_prefill(const RunProblem& problem, std::int64_t more_than,
                              const Workspace& workspace, const Context& context) {
  const Queries& q = problem.queries;
  if (q.rows == 0 || q.q.shape[0] == 0) return;
  const KvRows keys = kv_rows(problem.cache, problem.cache.k);
  const KvRows values = kv_rows(problem.cache, problem.cache.v);
  instance(q.q.dtype, std::max(q.head_dim, q.value_dim))(
      q, keys, tensor_of(problem.cache, keys, problem.cache.k), values,
      tensor_of(problem.cache, values, problem.cache.v),
      {more_than, workspace.data, device::multiprocessors(context)}, context);
}

}  // namespace hyla::attention
