#include "ops/attention_decode/launch_decode.h"

#include "device/launch.h"

namespace hyla::attention {
namespace {

int processors(const RunProblem& problem) {
  Context context;
  context.device = problem.queries.q.device;
  return device::multiprocessors(context);
}

}  // namespace

decode::Plan decode_plan(const RunProblem& problem, std::int64_t most_packed) {
  return decode::make_plan(problem, most_packed, processors(problem));
}

decode::Plan decode_own_plan(const RunProblem& problem) {
  return decode::make_own_plan(problem, processors(problem));
}

void launch_decode(const RunProblem& problem, std::int64_t most_packed, const decode::Plan& plan,
                   const Workspace& workspace, const Context& context) {
  if (problem.queries.rows == 0 || problem.queries.q.shape[0] == 0) return;
  decode::Arguments arguments = decode::make_arguments(problem, most_packed);
  decode::set_workspace(arguments, plan, workspace.data);
  switch (problem.cache.k.dtype) {
    case DType::kBFloat16:
      return decode::launch_bf16(arguments, plan, context);
    case DType::kFloat16:
      return decode::launch_f16(arguments, plan, context);
    case DType::kFloat8E4M3:
      return decode::launch_e4m3(arguments, plan, context);
    default:
      return decode::launch_int8(arguments, plan, context);
  }
}

}  // namespace hyla::attention
