// expect: RECURRENCE_BLOCK_SIZE: 1 to 1024 threads
// lines: 1
#include <hyla/recurrence_kernel.h>

using hyla::DType;

void call() {
  hyla::gdn::gated_delta_recurrence_fwd_gpu<DType::kFloat32, DType::kFloat32, 128, 128, 2048>(
      0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {}, {}, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {});
}
