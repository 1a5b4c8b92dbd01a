// expect: attention kernel: keys and values have one dtype
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using hyla::attention::DenseOperand;
  hyla::attention::prefill<64>(params, DenseOperand<hyla::bfloat16>{},
                               DenseOperand<hyla::float16>{}, 1, {}, {});
}
