// One instance of each tile kernel an input dtype, each dtype compiled in files of its own.
#pragma once

#include "device/launch.h"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

void launch_fused_bf16(const FusedArguments&, unsigned ctas, const Context&);
void launch_fused_f16(const FusedArguments&, unsigned ctas, const Context&);

// prepare on `ctas` CTAs, then serial on two a task
void launch_split_bf16(const FusedArguments&, unsigned ctas, const Context&);
void launch_split_f16(const FusedArguments&, unsigned ctas, const Context&);

}  // namespace hyla::gdn
