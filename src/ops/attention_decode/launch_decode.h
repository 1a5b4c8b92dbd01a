// The decode kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "ops/attention_decode/plan.h"

namespace hyla::attention {

// For the rows n with q_len[n] * Hq / Hk <= most_packed; the others are not touched.
decode::Plan decode_plan(const RunProblem& problem, std::int64_t most_packed);
void launch_decode(const RunProblem& problem, std::int64_t most_packed, const decode::Plan& plan,
                   const Workspace& workspace, const Context& context);

// For the rows of at most decode::kWarpRows packed query rows, with bits that depend on the row
// alone.
decode::Plan decode_own_plan(const RunProblem& problem);

namespace decode {

// One file each, by what the cache stores.
void launch_bf16(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_f16(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_e4m3(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_int8(const Arguments& arguments, const Plan& plan, const Context& context);

}  // namespace decode
}  // namespace hyla::attention
