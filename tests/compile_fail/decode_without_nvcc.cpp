// expect: decode: compile with nvcc for sm_90a
// lines: 1
#include <hyla/attention_decode.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using hyla::attention::DenseOperand;
  hyla::attention::cuda::decode<64>(params, DenseOperand<hyla::float16>{},
                                    DenseOperand<hyla::float16>{}, 1, {}, {});
}
