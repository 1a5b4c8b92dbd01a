// What `hyla check --suite gpu` checks: small problems that cross everything the CUDA tables
// distinguish. The suite to measure has the sizes of real models, over which the reference would
// take hours and find nothing else.
#pragma once

#include "suites.h"

namespace hyla::tool {

std::vector<CheckedProblem> gpu_checks();

}  // namespace hyla::tool
