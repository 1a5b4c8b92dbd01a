// The kernels of the split plans, one after another on the stream.
#pragma once

#include "ops/gdn_prefill/kernel_serial.cuh"
#include "ops/gdn_prefill/kernel_serial_listed.cuh"
#include "ops/gdn_prefill/kernel_transfer.cuh"
#include "ops/gdn_prefill/launch_prepare.cuh"

namespace hyla::gdn {

template <class Io>
void launch_split(const FusedArguments& a, const SplitShape& split, const Context& context) {
  const Context after = launch_prepare<Io, 1>(a, split, context);
  device::LaunchShape shape;
  const unsigned tasks = split.tasks, parts = static_cast<unsigned>(a.parts);
  if (a.transfers) {
    shape.block = dim3(serial_threads(1));
    shape.shared_bytes = sizeof(TransferShared<Io>);
    shape.grid = dim3(tasks, 2, 2 * parts - 3);
    device::launch(transfer<Io>, shape, a, after);
    if (pieces_followed(a) > 1) launch_states(a, after);
  }
  if (a.p.checkpoint_offsets.present()) {
    shape.block = dim3(serial_threads(1));
    shape.shared_bytes = sizeof(ListedShared<Io>);
    shape.grid = dim3(tasks, split.blocks);
    device::launch(serial_listed<Io>, shape, a, after);
    return;
  }
  const bool both = split.blocks_a_cta == 2;
  shape.block = dim3(serial_threads(split.blocks_a_cta));
  shape.shared_bytes = both ? sizeof(SerialShared<Io, 2>) : sizeof(SerialShared<Io, 1>);
  shape.grid = dim3(tasks, split.blocks / split.blocks_a_cta, parts);
  if (a.ordered) {
    device::launch(both ? serial<Io, 2, true> : serial<Io, 1, true>, shape, a, after);
  } else {
    device::launch(both ? serial<Io, 2, false> : serial<Io, 1, false>, shape, a, after);
  }
}

}  // namespace hyla::gdn
