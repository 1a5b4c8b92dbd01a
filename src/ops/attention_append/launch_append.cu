#include "ops/attention_append/launch_append.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/attention_append/kernel_heads.cuh"
#include "ops/attention_append/rows_arguments.h"

namespace hyla::attention {
namespace {

using appending::RowsArguments;

std::int64_t tiles(const AppendProblem& problem) {
  const std::int64_t tokens = problem.k.shape[0];
  return tokens / appending::kTileTokens + std::min(problem.sequences.rows, tokens);
}

template <class In, class Out>
void launch(const AppendProblem& problem, const Context& context) {
  constexpr int kShare = 32 * appending::kLines<Out> * appending::kRowWarps;
  const RowsArguments arguments = appending::rows_arguments(problem);
  const int most = std::max(arguments.halves[0].total, arguments.halves[1].total);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((most + kShare - 1) / kShare),
                    problem.value_dim > 0 && !arguments.paired ? 2u : 1u);
  shape.block = dim3(32 * appending::kRowWarps);
  device::launch(appending::append_rows<In, Out>, shape, arguments, context);
}

template <class In>
void launch_converting(const AppendProblem& problem, const Context& context) {
  switch (problem.cache.k.dtype) {
    case DType::kFloat8E4M3:
      return launch<In, __nv_fp8_e4m3>(problem, context);
    case DType::kInt8:
      return launch<In, std::int8_t>(problem, context);
    default:
      return launch<In, In>(problem, context);
  }
}

}  // namespace

const char* append_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  return tiles(problem) > INT32_MAX ? "more than 2^35 tokens" : nullptr;
}

const char* append_rows_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = append_refuses(problem, context)) return reason;
  return appending::rows_refuses(problem);
}

void launch_append(const AppendProblem& problem, const Workspace&, const Context& context) {
  const std::int64_t count = tiles(problem);
  if (count == 0) return;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(count));
  shape.block = dim3(appending::kThreads);
  device::launch(appending::append_heads, shape, appending::Arguments(problem), context);
}

void launch_append_rows(const AppendProblem& problem, const Workspace&, const Context& context) {
  if (problem.k.shape[0] == 0 || problem.sequences.rows == 0) return;
  if (appending::as_is(problem)) {
    launch<appending::Bytes, appending::Bytes>(problem, context);
  } else if (problem.k.dtype == DType::kBFloat16) {
    launch_converting<__nv_bfloat16>(problem, context);
  } else {
    launch_converting<__half>(problem, context);
  }
}

}  // namespace hyla::attention
