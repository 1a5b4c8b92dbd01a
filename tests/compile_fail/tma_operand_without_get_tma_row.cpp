// expect: KV operand: .*get_tma_row.* is missing
// lines: 1
#include "complete_tma.h"

struct Operand : CompleteTma<Operand> {
  void get_tma_row() const = delete;  // hides the one it would inherit
};

void call(const hyla::attention::RunParams& params, const hyla::TensorView& lists,
          const Operand& k) {
  hyla::attention::reference::run_sparse(params, k, k, 1, lists);
}
