#pragma once

#include "problem/gdn.h"

namespace hyla::gdn {

struct DecodeProblem : Problem {};

DecodeProblem validate(const DecodeParams& params, const Context& context);

}  // namespace hyla::gdn
