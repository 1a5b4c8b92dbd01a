#include "ops/attention_prefill/launch_widened.cuh"

namespace hyla::attention {

template WidenedLaunch launch_widened<__nv_bfloat16, 64>;

}  // namespace hyla::attention
