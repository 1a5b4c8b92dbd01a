#include "quantised.h"

using Operand = Quantised;

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
