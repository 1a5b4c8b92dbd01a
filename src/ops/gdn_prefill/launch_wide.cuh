// The kernels of the split plan for K above 128, one after another on the stream.
#pragma once

#include "ops/gdn_prefill/kernel_serial_pair.cuh"
#include "ops/gdn_prefill/kernel_serial_wide.cuh"
#include "ops/gdn_prefill/kernel_wide_listed.cuh"
#include "ops/gdn_prefill/launch_prepare.cuh"

namespace hyla::gdn {

template <class Io>
void launch_wide(const FusedArguments& a, const SplitShape& split, const Context& context) {
  const Context after = launch_prepare<Io, 2>(a, split, context);
  device::LaunchShape shape;
  const bool both = split.blocks_a_cta == 2;
  shape.block = dim3(kWideThreads);
  shape.shared_bytes = both ? sizeof(PairShared<Io>) : sizeof(WideShared<Io>);
  shape.grid = dim3(static_cast<unsigned>(a.tasks), split.blocks / split.blocks_a_cta,
                    static_cast<unsigned>(a.parts));
  if (a.p.checkpoint_offsets.present()) {
    device::launch(wide_listed<Io>, shape, a, after);
  } else {
    device::launch(both ? serial_pair<Io> : serial_wide<Io>, shape, a, after);
  }
}

}  // namespace hyla::gdn
