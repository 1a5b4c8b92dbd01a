// expect: KV operand: must be trivially copyable
// lines: 1
#include <vector>

#include "complete.h"

struct Operand : Complete {
  std::vector<float> memory;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
