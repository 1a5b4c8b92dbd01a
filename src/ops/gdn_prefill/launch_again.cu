#include "ops/gdn_prefill/launch_again.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/gdn_prefill/kernel_again.cuh"

namespace hyla::gdn {

void launch_again(const FusedArguments& a, const Context& context) {
  if (a.p.q.dtype != DType::kFloat16) return;
  const std::int64_t items = static_cast<std::int64_t>(a.tasks) * (a.p.V / kRowsPerWarp);
  const std::int64_t ctas = (items + kAgainThreads - 1) / kAgainThreads;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(
      std::min<std::int64_t>(ctas, 2 * std::int64_t{device::multiprocessors(context)})));
  shape.block = dim3(kAgainThreads);
  shape.programmatic = true;
  device::launch(a.p.K <= 64    ? prefill_again<2>
                 : a.p.K <= 128 ? prefill_again<4>
                                : prefill_again<8>,
                 shape, a, context);
}

}  // namespace hyla::gdn
