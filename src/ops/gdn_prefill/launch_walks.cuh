// The launch of the kernel that walks for states between segments, for the file of each dtype.
#pragma once

#include "ops/gdn_prefill/kernel_walk.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

template <class Io>
void launch_walks(const FusedArguments& a, unsigned ctas, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(ctas);
  shape.block = dim3(kFusedThreads);
  shape.shared_bytes = sizeof(WalkShared<Io>);
  device::launch(a.p.l2norm ? walk_segments<Io, true> : walk_segments<Io, false>, shape, a,
                 context);
}

}  // namespace hyla::gdn
