#include "ops/gdn_prefill/launch_walks.cuh"

namespace hyla::gdn {

void launch_walks_f16(const FusedArguments& arguments, unsigned ctas, const Context& context) {
  launch_walks<__half>(arguments, ctas, context);
}

}  // namespace hyla::gdn
