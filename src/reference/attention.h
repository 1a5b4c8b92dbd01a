// Attention and append on the reference backend.
#pragma once

#include <hyla/workspace.h>

#include "problem/attention.h"

namespace hyla::reference {

void attention(const hyla::attention::RunProblem&, const Workspace&, const Context&);
void attention_append(const hyla::attention::AppendProblem&, const Workspace&, const Context&);

}  // namespace hyla::reference
