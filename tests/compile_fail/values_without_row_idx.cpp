// expect: KV operand: .*row_idx.* is missing
// lines: 1
#include <hyla/kv_operands.h>

#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::row_idx;
};

void call(const hyla::attention::RunParams& params, const Operand& v) {
  hyla::attention::reference::run(params, hyla::attention::DenseOperand<float>{}, v, 1);
}
