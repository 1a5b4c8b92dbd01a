// expect: attention::cuda::run: compile with nvcc for sm_90a
// lines: 1
#include <hyla/attention_cuda.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using hyla::attention::DenseOperand;
  hyla::attention::cuda::run(params, DenseOperand<hyla::float16>{}, DenseOperand<hyla::float16>{},
                             1, {});
}
