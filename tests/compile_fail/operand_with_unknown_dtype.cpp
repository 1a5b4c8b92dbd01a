// expect: KV operand: .*using dtype
// lines: 1
#include "complete.h"

struct Operand : CompleteOf<double> {};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
