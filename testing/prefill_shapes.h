// Prefill problems as serving sees them, for sweeps: heads, rows, lengths, dims and state dtypes
// drawn at random, small enough to measure hundreds of them.
#pragma once

#include "testing/problem_string.h"

namespace hyla::testing {

// The same for the same (seed, index), whatever else is drawn.
ProblemSpec random_prefill_shape(std::uint64_t seed, std::int64_t index);

}  // namespace hyla::testing
