#include "ops/attention_append/launch_append.h"

#include <algorithm>

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/attention_append/kernel_copy.cuh"
#include "ops/attention_append/kernel_heads.cuh"

namespace hyla::attention {
namespace {

std::int64_t tiles(const AppendProblem& problem) {
  const std::int64_t tokens = problem.k.shape[0];
  return tokens / appending::kTileTokens + std::min(problem.sequences.rows, tokens);
}

bool aligned(const TensorView& x) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  bool good = device::aligned(x.data, 16) && x.shape[x.rank - 1] * size % 16 == 0;
  for (int d = 0; d < x.rank - 1; ++d) good = good && x.strides[d] * size % 16 == 0;
  return good;
}

void run(void (*kernel)(appending::Arguments), const AppendProblem& problem,
         const Context& context) {
  const std::int64_t count = tiles(problem);
  if (count == 0) return;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(count));
  shape.block = dim3(appending::kThreads);
  device::launch(kernel, shape, appending::Arguments(problem), context);
}

}  // namespace

const char* append_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  return tiles(problem) > INT32_MAX ? "more than 2^35 tokens" : nullptr;
}

const char* append_copy_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = append_refuses(problem, context)) return reason;
  if (problem.cos.present()) return "keys are rotated";
  if (problem.k.dtype != problem.cache.k.dtype) return "the cache has another dtype";
  const bool values = problem.value_dim > 0;
  if (!aligned(problem.k) || !aligned(problem.cache.k) ||
      (values && (!aligned(problem.v) || !aligned(problem.cache.v)))) {
    return "rows are not aligned to 16 bytes";
  }
  return nullptr;
}

void launch_append(const AppendProblem& problem, const Workspace&, const Context& context) {
  run(appending::append_heads, problem, context);
}

void launch_append_copy(const AppendProblem& problem, const Workspace&, const Context& context) {
  run(appending::append_copy, problem, context);
}

}  // namespace hyla::attention
