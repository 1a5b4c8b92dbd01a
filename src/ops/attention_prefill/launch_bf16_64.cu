#include "ops/attention_prefill/launch_instances.h"

namespace hyla::attention {

template BuiltInLaunch launch_tile<__nv_bfloat16, 64>;

}  // namespace hyla::attention
