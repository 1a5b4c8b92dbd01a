// Host side of the one-token kernels, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_decode.h"

namespace hyla::gdn {

// Null when kernel_vk.cuh, or kernel_kv.cuh, takes the problem; launch_decode() chooses by layout.
const char* decode_vk_refuses(const DecodeProblem& problem, const Context& context);
const char* decode_kv_refuses(const DecodeProblem& problem, const Context& context);
void launch_decode(const DecodeProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::gdn
