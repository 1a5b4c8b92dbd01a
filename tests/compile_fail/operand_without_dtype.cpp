// expect: KV operand: .*dtype.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::dtype;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
