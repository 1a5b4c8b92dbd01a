#include <algorithm>

#include "device/launch.h"
#include "ops/gdn_prefill/kernel_tokens.cuh"
#include "ops/gdn_prefill/launch_prefill.h"

namespace hyla::gdn {

const char* prefill_tokens_refuses(const PrefillProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  return p.heads > 65535 ? "more than 65535 heads" : nullptr;
}

void launch_prefill_tokens(const PrefillProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  constexpr std::int64_t kMaxGridZ = 65535;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.V + kRowsPerCta - 1) / kRowsPerCta),
                    static_cast<unsigned>(p.heads),
                    static_cast<unsigned>(std::min(p.sequences.rows, kMaxGridZ)));
  shape.block = dim3(kRowsWarps * 32);
  device::launch(p.K <= 64    ? prefill_tokens<2>
                 : p.K <= 128 ? prefill_tokens<4>
                              : prefill_tokens<8>,
                 shape, p, context);
}

}  // namespace hyla::gdn
