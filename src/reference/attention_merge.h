#pragma once

#include <hyla/workspace.h>

#include "problem/attention_merge.h"

namespace hyla::reference {

void attention_merge(const hyla::attention::MergeProblem&, const Workspace&, const Context&);

}  // namespace hyla::reference
