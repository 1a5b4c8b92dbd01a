// Host side of the append kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/attention.h"

namespace hyla::attention {

const char* append_refuses(const AppendProblem& problem, const Context& context);
const char* append_rows_refuses(const AppendProblem& problem, const Context& context);
void launch_append(const AppendProblem& problem, const Workspace&, const Context& context);
void launch_append_rows(const AppendProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::attention
