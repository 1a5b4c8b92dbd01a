#include "ops/gdn_prefill/launch_split.cuh"

namespace hyla::gdn {

void launch_split_bf16(const FusedArguments& arguments, const SplitShape& shape,
                       const Context& context) {
  launch_split<__nv_bfloat16>(arguments, shape, context);
}

}  // namespace hyla::gdn
