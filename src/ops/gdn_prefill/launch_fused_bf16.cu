#include "ops/gdn_prefill/kernel_fused.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

void launch_fused_bf16(const FusedArguments& arguments, unsigned ctas, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(ctas);
  shape.block = dim3(kFusedThreads);
  shape.shared_bytes = sizeof(FusedShared<__nv_bfloat16>);
  const auto kernel = arguments.p.l2norm ? fused<__nv_bfloat16, true> : fused<__nv_bfloat16, false>;
  device::launch(kernel, shape, arguments, context);
}

}  // namespace hyla::gdn
