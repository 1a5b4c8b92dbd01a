// The decode kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "ops/attention_decode/plan.h"

namespace hyla::attention {

std::size_t decode_workspace_bytes(const RunProblem& problem);
void launch_decode(const RunProblem& problem, const Workspace& workspace, const Context& context);
std::size_t decode_rows_workspace_bytes(const RunProblem& problem, std::int64_t most_packed);
// The rows n with q_len[n] * Hq / Hk <= most_packed; the others are not touched.
void launch_decode_rows(const RunProblem& problem, std::int64_t most_packed,
                        const Workspace& workspace, const Context& context);

// The rows of at most decode::kWarpRows packed query rows, with bits that depend on the row alone.
std::size_t decode_own_workspace_bytes(const RunProblem& problem);
void launch_decode_own(const RunProblem& problem, const Workspace& workspace,
                       const Context& context);

namespace decode {

// One file each, by what the cache stores.
void launch_bf16(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_f16(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_e4m3(const Arguments& arguments, const Plan& plan, const Context& context);
void launch_int8(const Arguments& arguments, const Plan& plan, const Context& context);

}  // namespace decode
}  // namespace hyla::attention
