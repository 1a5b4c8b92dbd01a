#include "ops/gdn_prefill/kernel_states.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

void launch_states(const FusedArguments& a, int rows, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(128 / rows), static_cast<unsigned>(a.tasks));
  shape.block = dim3(kStatesThreads);
  shape.shared_bytes = rows == 4 ? sizeof(StatesShared<4>) : sizeof(StatesShared<8>);
  device::launch(rows == 4 ? states<4> : states<8>, shape, a, context);
}

}  // namespace hyla::gdn
