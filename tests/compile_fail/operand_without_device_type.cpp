// expect: KV operand: .*device_type.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::device_type;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
