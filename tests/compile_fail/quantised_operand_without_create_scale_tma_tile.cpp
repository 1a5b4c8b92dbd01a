// expect: KV operand: .*create_scale_tma_tile.* is missing
// lines: 1
#include "quantised.h"

struct Operand : Quantised {
 private:
  using Quantised::create_scale_tma_tile;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
