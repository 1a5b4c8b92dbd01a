#include "complete.h"

void call(const hyla::attention::RunParams& params, const Complete& k, const Complete& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
