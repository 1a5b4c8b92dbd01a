#include "ops/attention_prefill/launch_instances.h"

namespace hyla::attention {

template BuiltInLaunch launch_tile<__half, 64>;

}  // namespace hyla::attention
