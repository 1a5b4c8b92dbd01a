// Host side of the gated norm's kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/norm.h"

namespace hyla::norm {

// kernel_wide.cuh
const char* wide_refuses(const GatedRmsProblem& problem, const Context& context);
void launch_wide(const GatedRmsProblem& problem, const Workspace&, const Context& context);

// kernel_any.cuh
const char* any_refuses(const GatedRmsProblem& problem, const Context& context);
void launch_any(const GatedRmsProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::norm
