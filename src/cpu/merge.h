// attention.merge on vectors and threads.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/attention_merge.h"

namespace hyla::cpu {

struct MergeKernels {
  // Rows of the token-major list of (token, head).
  void (*run)(const attention::MergeProblem& p, Range rows);
};
const MergeKernels& merge_kernels(Target target);

void run_merge(Target target, const attention::MergeProblem& p, const Context& context);

}  // namespace hyla::cpu
