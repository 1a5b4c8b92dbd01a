#include "ops/attention_decode/launch_decode.h"

#include "device/launch.h"

namespace hyla::attention {
namespace {

decode::Plan plan_of(const RunProblem& problem) {
  Context context;
  context.device = problem.queries.q.device;
  return decode::make_plan(problem, device::multiprocessors(context));
}

}  // namespace

std::size_t decode_workspace_bytes(const RunProblem& problem) {
  return decode::workspace_bytes(plan_of(problem));
}

void launch_decode(const RunProblem& problem, const Workspace& workspace, const Context& context) {
  if (problem.queries.rows == 0 || problem.queries.q.shape[0] == 0) return;
  const decode::Plan plan = plan_of(problem);
  decode::Arguments arguments = decode::make_arguments(problem);
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
