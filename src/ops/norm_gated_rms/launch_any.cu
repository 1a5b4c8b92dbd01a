#include "ops/norm_gated_rms/launch_gated_rms.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/norm_gated_rms/kernel_any.cuh"

namespace hyla::norm {

const char* any_refuses(const GatedRmsProblem&, const Context& context) {
  return device::refuses_device(context);
}

void launch_any(const GatedRmsProblem& p, const Workspace&, const Context& context) {
  const std::int64_t vectors = p.tokens * p.heads;
  if (vectors == 0) return;
  constexpr std::int64_t kMaxCtas = 1 << 20;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(kMaxCtas, (vectors + kWarps - 1) / kWarps)));
  shape.block = dim3(kWarps * 32);
  device::launch(gated_rms_any, shape, p, context);
}

}  // namespace hyla::norm
