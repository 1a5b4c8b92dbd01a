#include "ops/attention_prefill/launch_instances.h"

namespace hyla::attention {

template BuiltInLaunch launch_tile<__nv_bfloat16, 256>;

}  // namespace hyla::attention
