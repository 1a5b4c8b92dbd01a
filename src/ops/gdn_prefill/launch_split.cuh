// The kernels of the split plans, one after another on the stream.
#pragma once

#include "ops/gdn_prefill/kernel_prepare.cuh"
#include "ops/gdn_prefill/kernel_serial.cuh"
#include "ops/gdn_prefill/kernel_transfer.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"

namespace hyla::gdn {

template <class Io>
void launch_split(const FusedArguments& a, const SplitShape& split, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(split.prepare_ctas);
  shape.block = dim3(kPrepareThreads);
  shape.shared_bytes = kPrepareGroups * sizeof(PrepareGroup<Io>);
  device::launch(prepare<Io>, shape, a, context);

  // The next kernel's CTAs take their places as those of the one before leave.
  Context after = context;
  after.programmatic_launch = true;
  const auto tasks = static_cast<unsigned>(a.tasks), parts = static_cast<unsigned>(a.parts);
  shape.block = dim3(kSerialThreads);
  if (a.transfers) {
    shape.shared_bytes = sizeof(TransferShared<Io>);
    shape.grid = dim3(2, tasks, 2 * parts - 3);
    device::launch(transfer<Io>, shape, a, after);
    launch_states(a, after);
  }
  shape.shared_bytes = sizeof(SerialShared<Io>);
  shape.grid = dim3(2, tasks, parts);
  device::launch(serial<Io>, shape, a, after);
}

}  // namespace hyla::gdn
