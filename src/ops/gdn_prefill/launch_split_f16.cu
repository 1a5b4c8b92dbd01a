#include "ops/gdn_prefill/kernel_prepare.cuh"
#include "ops/gdn_prefill/kernel_serial.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

void launch_split_f16(const FusedArguments& arguments, unsigned ctas, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(ctas);
  shape.block = dim3(kPrepareThreads);
  shape.shared_bytes = kPrepareGroups * sizeof(PrepareGroup<__half>);
  device::launch(prepare<__half>, shape, arguments, context);

  shape.grid = dim3(static_cast<unsigned>(2 * arguments.tasks));
  shape.block = dim3(kSerialThreads);
  shape.shared_bytes = sizeof(SerialShared<__half>);
  device::launch(serial<__half>, shape, arguments, context);
}

}  // namespace hyla::gdn
