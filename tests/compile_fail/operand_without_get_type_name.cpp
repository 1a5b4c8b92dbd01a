// expect: KV operand: .*get_type_name.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::get_type_name;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
