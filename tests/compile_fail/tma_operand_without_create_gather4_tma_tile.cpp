// expect: KV operand: .*create_gather4_tma_tile.* is missing
// lines: 1
#include "complete_tma.h"

struct Operand : CompleteTma<Operand> {
  void create_gather4_tma_tile() const = delete;  // hides the one it would inherit
};

void call(const hyla::attention::RunParams& params, const hyla::TensorView& lists,
          const Operand& k) {
  hyla::attention::reference::run_sparse(params, k, k, 1, lists);
}
