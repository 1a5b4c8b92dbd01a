// The definition of the causal convolutions: scalar, one channel of one row at a time, in float64.
#pragma once

#include <hyla/workspace.h>

#include "problem/conv.h"

namespace hyla::reference {

void conv_prefill(const conv::PrefillProblem&, const Workspace&, const Context&);
void conv_update(const conv::UpdateProblem&, const Workspace&, const Context&);

}  // namespace hyla::reference
