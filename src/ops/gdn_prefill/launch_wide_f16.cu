#include "ops/gdn_prefill/launch_wide.cuh"

namespace hyla::gdn {

void launch_wide_f16(const FusedArguments& arguments, const SplitShape& shape,
                     const Context& context) {
  launch_wide<__half>(arguments, shape, context);
}

}  // namespace hyla::gdn
