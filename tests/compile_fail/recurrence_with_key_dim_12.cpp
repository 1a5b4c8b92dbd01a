// expect: KEY_HEAD_DIM: a multiple of 8 up to 256
// lines: 1
#include <hyla/recurrence_kernel.h>

using hyla::DType;

void call() {
  hyla::gdn::gated_delta_recurrence_fwd_gpu<DType::kFloat32, DType::kFloat32, 12, 128, 128>(
      0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, {}, {}, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {});
}
