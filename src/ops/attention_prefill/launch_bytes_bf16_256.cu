#include "ops/attention_prefill/launch_bytes_instances.h"

namespace hyla::attention {

template BytesLaunch launch_bytes<__nv_bfloat16, 256, ByteRows, ByteRows>;

}  // namespace hyla::attention
