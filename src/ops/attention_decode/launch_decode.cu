#include "ops/attention_decode/launch_decode.h"

#include "device/launch.h"

namespace hyla::attention {
namespace {

int processors(const RunProblem& problem) {
  Context context;
  context.device = problem.queries.q.device;
  return device::multiprocessors(context);
}

decode::Plan plan_of(const RunProblem& problem, std::int64_t most_packed) {
  return decode::make_plan(problem, most_packed, processors(problem));
}

void launch(const RunProblem& problem, std::int64_t most_packed, const decode::Plan& plan,
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

}  // namespace

std::size_t decode_workspace_bytes(const RunProblem& problem) {
  return decode_rows_workspace_bytes(problem, decode::kAllRows);
}

std::size_t decode_rows_workspace_bytes(const RunProblem& problem, std::int64_t most_packed) {
  return decode::workspace_bytes(plan_of(problem, most_packed));
}

void launch_decode(const RunProblem& problem, const Workspace& workspace, const Context& context) {
  launch_decode_rows(problem, decode::kAllRows, workspace, context);
}

void launch_decode_rows(const RunProblem& problem, std::int64_t most_packed,
                        const Workspace& workspace, const Context& context) {
  launch(problem, most_packed, plan_of(problem, most_packed), workspace, context);
}

std::size_t decode_own_workspace_bytes(const RunProblem& problem) {
  return decode::workspace_bytes(decode::make_own_plan(problem, processors(problem)));
}

void launch_decode_own(const RunProblem& problem, const Workspace& workspace,
                       const Context& context) {
  launch(problem, decode::kWarpRows, decode::make_own_plan(problem, processors(problem)), workspace,
         context);
}

}  // namespace hyla::attention
