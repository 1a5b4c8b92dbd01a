// Host side of kernel_conv.cuh, for the tables of conv.prefill and conv.update.
#pragma once

#include <hyla/workspace.h>

#include "problem/conv.h"

namespace hyla::conv {

const char* conv_refuses(const Problem& problem, const Context& context);
void launch_conv(const PrefillProblem& problem, const Workspace&, const Context& context);
void launch_conv(const UpdateProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::conv
