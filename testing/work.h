// How much a problem moves and computes at the least, whoever computes it.
#pragma once

#include "testing/problem_string.h"

namespace hyla::testing {

struct Work {
  double bytes = 0;  // every input read once, every output written once; a pool's used slots only
  double flops = 0;
  // Of the products of 16-bit operands in the usual algorithm on matrix units; 0: it has none.
  double matrix_flops = 0;
};

Work work_of(const ProblemSpec& spec);

}  // namespace hyla::testing
