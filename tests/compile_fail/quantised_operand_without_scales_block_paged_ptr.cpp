// expect: KV operand: .*scales_block_paged_ptr.* is missing
// lines: 1
#include "quantised.h"

struct Operand : Quantised {
 private:
  using Quantised::scales_block_paged_ptr;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
