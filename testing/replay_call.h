// Calls for a captured graph.
#pragma once

#include <optional>

#include "testing/random_problem.h"

namespace hyla::testing {

// A call of the same shapes as `first`, which came from the same problem and options: other
// numbers and other slots, and the rows' lengths in another order. `replay` counts from 1.
Call replay_call(const ProblemSpec& spec, const CaseOptions& options, const Call& first,
                 int replay);
// The same, or nothing where none of a few draws has those shapes.
std::optional<Call> find_replay_call(const ProblemSpec& spec, const CaseOptions& options,
                                     const Call& first, int replay);

}  // namespace hyla::testing
