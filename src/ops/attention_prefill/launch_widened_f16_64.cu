#include "ops/attention_prefill/launch_widened.cuh"

namespace hyla::attention {

template WidenedLaunch launch_widened<__half, 64>;

}  // namespace hyla::attention
