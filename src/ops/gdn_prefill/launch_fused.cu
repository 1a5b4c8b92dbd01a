#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/tile_arguments.h"

namespace hyla::gdn {

const char* prefill_fused_refuses(const PrefillProblem& p, const Context& context) {
  if (p.K != 128 || p.V != 128) return "takes K = V = 128";
  return prefill_tiles_refuse(p, context);
}

void launch_prefill_fused(const PrefillProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const FusedArguments a = arguments(p);
  const int ctas = std::min(a.tasks, device::multiprocessors(context));
  const auto launch = p.q.dtype == DType::kBFloat16 ? launch_fused_bf16 : launch_fused_f16;
  launch(a, static_cast<unsigned>(ctas), context);
}

}  // namespace hyla::gdn
