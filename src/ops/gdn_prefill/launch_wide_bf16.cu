#include "ops/gdn_prefill/launch_wide.cuh"

namespace hyla::gdn {

void launch_wide_bf16(const FusedArguments& arguments, const SplitShape& shape,
                      const Context& context) {
  launch_wide<__nv_bfloat16>(arguments, shape, context);
}

}  // namespace hyla::gdn
