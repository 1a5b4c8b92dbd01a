// Problems nobody thought of: every key of an operation drawn, small enough for the reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "testing/problem_string.h"

namespace hyla::testing {

// The same number gives the same problem. On a GPU with programmatic launches here and there.
ProblemSpec draw_problem(Operation operation, Device::Kind device, std::uint64_t number);

// The keys that `text`, a problem, gives are as it says, the others drawn. Nothing where these do
// not go together.
std::optional<ProblemSpec> draw_problem(std::string_view text, std::uint64_t number);

}  // namespace hyla::testing
