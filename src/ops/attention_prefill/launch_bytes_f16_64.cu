#include "ops/attention_prefill/launch_instances.h"

namespace hyla::attention {

template BytesLaunch launch_bytes<__half, 64>;

}  // namespace hyla::attention
