// Host side of kernel_gated_rms.cuh, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/norm.h"

namespace hyla::norm {

const char* gated_rms_refuses(const GatedRmsProblem& problem, const Context& context);
void launch_gated_rms(const GatedRmsProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::norm
