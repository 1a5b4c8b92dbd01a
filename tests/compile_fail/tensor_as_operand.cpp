// expect: KV operand: .*device_type
// lines: 1
#include <hyla/attention_reference.h>

void call(const hyla::attention::RunParams& params, const hyla::TensorView& k) {
  hyla::attention::reference::run(params, k, k, 1);
}
