// The rows kernel over the built-in caches, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/attention.h"

namespace hyla::attention {

const char* rows_refuses(const RunProblem& problem, const Context& context);
void launch_rows(const RunProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::attention
