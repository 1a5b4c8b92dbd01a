// The threads that a problem asks for: OpenMP's, or those of a pool that all problems share.
#pragma once

#include "testing/problem_string.h"

namespace hyla::testing {

// A pool stays for the rest of the process.
Context on_threads_of(const ProblemSpec& spec);

}  // namespace hyla::testing
