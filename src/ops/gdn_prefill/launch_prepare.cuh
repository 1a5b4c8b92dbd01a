// The first kernel of the plans that prepare chunks.
#pragma once

#include "ops/gdn_prefill/kernel_prepare.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

// Halves: of up to 128 keys. The context for the kernels behind it: their CTAs take their places as
// those of the one before leave.
template <class Io, int Halves>
Context launch_prepare(const FusedArguments& a, const SplitShape& split, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(split.prepare_ctas);
  shape.block = dim3(kPrepareThreads);
  shape.shared_bytes = kPrepareGroups * sizeof(PrepareGroup<Io>);
  Context after = context;
  after.programmatic_launch = true;
  if constexpr (Halves == 1) {
    if (a.handover.ready != nullptr) {
      device::launch(a.p.l2norm ? prepare_beside<Io, true> : prepare_beside<Io, false>, shape, a,
                     context);
      return after;
    }
  }
  // Of the rare K above 128 one instance has to do.
  if constexpr (Halves == 1) {
    device::launch(a.long_rows > 0 ? prepare<Io, 1, true, true>
                   : a.p.l2norm    ? prepare<Io, 1, false, true>
                                   : prepare<Io, 1, false, false>,
                   shape, a, context);
  } else {
    device::launch(prepare<Io, Halves, false, true>, shape, a, context);
  }
  return after;
}

}  // namespace hyla::gdn
