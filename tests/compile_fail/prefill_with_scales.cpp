// expect: attention kernel: operands with scales hold float8_e4m3 or int8
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using Scaled = hyla::attention::DenseOperand<hyla::bfloat16, float>;
  hyla::attention::prefill<64>(params, Scaled{}, Scaled{}, 1, {}, {});
}
