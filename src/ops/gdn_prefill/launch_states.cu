#include <algorithm>

#include "ops/gdn_prefill/kernel_starts.cuh"
#include "ops/gdn_prefill/kernel_states.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

void launch_states(const FusedArguments& a, const Context& context) {
  const int most = a.tasks * (128 / kFewStateRows);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(most, device::multiprocessors(context))));
  shape.block = dim3(kStatesThreads);
  shape.shared_bytes = sizeof(StatesShared);
  device::launch(states, shape, a, context);
}

void launch_starts(const FusedArguments& a, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(a.tasks * (a.parts - 1)));
  shape.block = dim3(kStartThreads);
  device::launch(find_starts, shape, a, context);
}

}  // namespace hyla::gdn
