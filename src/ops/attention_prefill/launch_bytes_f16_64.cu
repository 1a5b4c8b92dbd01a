#include "ops/attention_prefill/launch_bytes.cuh"

namespace hyla::attention {

template BytesLaunch launch_bytes<__half, 64>;

}  // namespace hyla::attention
