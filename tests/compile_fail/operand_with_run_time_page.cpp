// expect: KV operand: .*static constexpr int page_size
// lines: 1
#include "complete.h"

struct Operand : Complete {
  int page_size = 16;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
