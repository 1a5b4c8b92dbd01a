// Problems nobody thought of: every key of an operation drawn, small enough for the reference.
#pragma once

#include <cstdint>

#include "testing/problem_string.h"

namespace hyla::testing {

// The same number gives the same problem. On a GPU with programmatic launches here and there.
ProblemSpec draw_problem(Operation operation, Device::Kind device, std::uint64_t number);

}  // namespace hyla::testing
