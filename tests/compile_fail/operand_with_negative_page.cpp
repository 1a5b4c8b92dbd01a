// expect: KV operand: .*page_size.*>= 0
// lines: 1
#include "complete.h"

struct Operand : Complete {
  static constexpr int page_size = -1;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
