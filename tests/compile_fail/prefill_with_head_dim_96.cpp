// expect: attention kernel: the head dim is padded to 64, 128 or 256
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using hyla::attention::DenseOperand;
  hyla::attention::prefill<96>(params, DenseOperand<hyla::bfloat16>{},
                               DenseOperand<hyla::bfloat16>{}, 1, {}, {});
}
