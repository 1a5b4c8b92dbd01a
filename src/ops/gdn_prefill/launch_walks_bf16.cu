#include "ops/gdn_prefill/launch_walks.cuh"

namespace hyla::gdn {

void launch_walks_bf16(const FusedArguments& arguments, unsigned ctas, const Context& context) {
  launch_walks<__nv_bfloat16>(arguments, ctas, context);
}

}  // namespace hyla::gdn
