// Host side of the kernels that merge attentions, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/attention_merge.h"

namespace hyla::attention {

// kernel_wide.cuh
const char* merge_wide_refuses(const MergeProblem& problem, const Context& context);
void launch_merge_wide(const MergeProblem& problem, const Workspace&, const Context& context);

// kernel_any.cuh
const char* merge_any_refuses(const MergeProblem& problem, const Context& context);
void launch_merge_any(const MergeProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::attention
