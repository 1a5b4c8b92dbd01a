#pragma once

#include "problem/gdn.h"

namespace hyla::gdn {

// q, k and v are views into the packed rows; no innermost stride needs to be 1.
struct RecurrenceProblem : Problem {};

RecurrenceProblem validate(const RecurrenceParams& params, const Context& context);

}  // namespace hyla::gdn
