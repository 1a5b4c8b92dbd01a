// expect: KV operand: .*row_idx.* is missing
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

#include "complete.h"

struct Operand : CompleteOf<hyla::bfloat16> {
 private:
  using CompleteOf::row_idx;
};

void call(const hyla::attention::RunParams& params, const Operand& v) {
  hyla::attention::prefill<64>(params, hyla::attention::DenseOperand<hyla::bfloat16>{}, v, 1, {},
                               {});
}
