// expect: KV operand: .*max_context_length.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::max_context_length;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
