// expect: KV operand: .*row_idx.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::row_idx;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
