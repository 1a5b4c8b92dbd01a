#include "ops/attention/launch_rows.h"

#include "device/launch.h"
#include "ops/attention/cache_source.cuh"

namespace hyla::attention {

const char* rows_refuses(const RunProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (problem.queries.kv_heads > 65535) return "more than 65535 KV heads";
  return rows::tile_bound(problem.queries, false) > INT32_MAX ? "more than 2^35 query rows"
                                                              : nullptr;
}

void launch_rows(const RunProblem& problem, const Workspace&, const Context& context) {
  const std::int64_t tiles = rows::tile_bound(problem.queries, false);
  if (tiles == 0) return;
  Queries queries = problem.queries;
  CacheSource source(problem.cache);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(queries.kv_heads));
  shape.block = dim3(rows::kThreads);
  shape.shared_bytes =
      static_cast<unsigned>(rows::shared_bytes(queries.head_dim, queries.value_dim));
  void* arguments[] = {&queries, &source};
  device::launch(reinterpret_cast<const void*>(rows::attention_rows<CacheSource>), shape, arguments,
                 context);
}

}  // namespace hyla::attention
