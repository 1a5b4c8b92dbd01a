// Launching the kernel that widens rows of one byte a value.
#pragma once

#include <hyla/context.h>
#include <hyla/tensor.h>

#include "ops/attention_prefill/widening.h"

namespace hyla::attention {

// dtype: of what it writes, bfloat16 or float16. Behind the schedule on the stream.
void launch_widening(const Widening& widening, DType dtype, int processors, const Context& context);

}  // namespace hyla::attention
