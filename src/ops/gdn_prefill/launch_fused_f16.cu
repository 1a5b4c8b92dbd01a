#include "ops/gdn_prefill/launch_fused_kernel.cuh"

namespace hyla::gdn {

void launch_fused_f16(const FusedArguments& arguments, unsigned ctas, const Context& context) {
  launch_fused<__half>(arguments, ctas, context);
}

}  // namespace hyla::gdn
