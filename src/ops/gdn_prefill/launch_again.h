// The kernel behind those with operands of fp16 (kernel_again.cuh).
#pragma once

#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

// `context`: of the kernel in front. Nothing for other inputs.
void launch_again(const FusedArguments& arguments, const Context& context);

}  // namespace hyla::gdn
