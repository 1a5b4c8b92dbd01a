// How much a problem moves and computes at the least, whoever computes it.
#pragma once

#include "testing/problem_string.h"

namespace hyla::testing {

struct Work {
  double bytes = 0;  // every input read once, every output written once; a pool's used slots only
  double flops = 0;
};

Work work_of(const ProblemSpec& spec);

}  // namespace hyla::testing
