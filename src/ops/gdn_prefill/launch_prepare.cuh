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
  device::launch(prepare<Io, Halves>, shape, a, context);
  Context after = context;
  after.programmatic_launch = true;
  return after;
}

}  // namespace hyla::gdn
