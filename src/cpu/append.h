// attention.append on vectors and threads: rows of tokens copied, or rotated, converted and
// quantised a head at a time.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/attention.h"

namespace hyla::cpu {

struct AppendKernels {
  // Tokens [begin, end) of the call, counted over its rows.
  void (*run)(const attention::AppendProblem& p, std::int64_t begin, std::int64_t end);
};
const AppendKernels& append_kernels(Target target);

void run_append(Target target, const attention::AppendProblem& p, const Context& context);

}  // namespace hyla::cpu
