// expect: KV operand: .*block_paged_ptr.* is missing
// lines: 1
#include "complete.h"

struct Operand : Complete {
 private:
  using Complete::block_paged_ptr;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
