// expect: attention kernel: operands hold bfloat16, float16, float8_e4m3 or int8
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using hyla::attention::DenseOperand;
  hyla::attention::prefill<64>(params, DenseOperand<float>{}, DenseOperand<float>{}, 1, {}, {});
}
