// Host side of the one-token kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_decode.h"

namespace hyla::gdn {

const char* decode_vk_refuses(const DecodeProblem& problem, const Context& context);
void launch_decode_vk(const DecodeProblem& problem, const Workspace&, const Context& context);

const char* decode_kv_refuses(const DecodeProblem& problem, const Context& context);
void launch_decode_kv(const DecodeProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::gdn
