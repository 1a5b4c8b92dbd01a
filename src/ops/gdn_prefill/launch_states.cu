#include "ops/gdn_prefill/kernel_states.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

void launch_states(const FusedArguments& a, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(128 / kStateRows, static_cast<unsigned>(a.tasks));
  shape.block = dim3(kStatesThreads);
  shape.shared_bytes = sizeof(StatesShared);
  device::launch(states, shape, a, context);
}

}  // namespace hyla::gdn
