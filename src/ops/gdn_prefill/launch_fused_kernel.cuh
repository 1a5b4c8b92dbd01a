// The launch of the fused kernel, for the file of each input dtype.
#pragma once

#include "ops/gdn_prefill/kernel_fused.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

template <class Io>
void launch_fused(const FusedArguments& a, unsigned ctas, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(ctas);
  shape.block = dim3(kFusedThreads);
  shape.shared_bytes = sizeof(FusedShared<Io>);
  const auto plain = a.p.l2norm ? fused<Io, true, false> : fused<Io, false, false>;
  const auto behind_longs = a.p.l2norm ? fused<Io, true, true> : fused<Io, false, true>;
  if (a.long_rows > 0) device::launch(behind_longs, shape, a, context);
  device::launch(plain, shape, a, context);
}

}  // namespace hyla::gdn
