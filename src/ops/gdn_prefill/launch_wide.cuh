// The kernels of the split plan for K above 128, one after another on the stream.
#pragma once

#include "ops/gdn_prefill/kernel_prepare.cuh"
#include "ops/gdn_prefill/kernel_serial_pair.cuh"
#include "ops/gdn_prefill/kernel_serial_wide.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

template <class Io>
void launch_wide(const FusedArguments& a, const SplitShape& split, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(split.prepare_ctas);
  shape.block = dim3(kPrepareThreads);
  shape.shared_bytes = kPrepareGroups * sizeof(PrepareGroup<Io>);
  device::launch(prepare<Io, 2>, shape, a, context);

  // The next kernel's CTAs take their places as those of the one before leave.
  Context after = context;
  after.programmatic_launch = true;
  const bool both = split.blocks_a_cta == 2;
  shape.block = dim3(kWideThreads);
  shape.shared_bytes = both ? sizeof(PairShared<Io>) : sizeof(WideShared<Io>);
  shape.grid = dim3(static_cast<unsigned>(a.tasks), split.blocks / split.blocks_a_cta,
                    static_cast<unsigned>(a.parts));
  device::launch(both ? serial_pair<Io> : serial_wide<Io>, shape, a, after);
}

}  // namespace hyla::gdn
