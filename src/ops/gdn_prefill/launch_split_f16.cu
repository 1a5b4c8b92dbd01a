#include "ops/gdn_prefill/launch_split.cuh"

namespace hyla::gdn {

void launch_split_f16(const FusedArguments& arguments, const SplitShape& shape,
                      const Context& context) {
  launch_split<__half>(arguments, shape, context);
}

}  // namespace hyla::gdn
