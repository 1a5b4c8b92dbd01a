// expect: KV operand: .*load_scale.* is missing
// lines: 1
#include "quantised.h"

struct Operand : Quantised {
 private:
  using Quantised::load_scale;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
