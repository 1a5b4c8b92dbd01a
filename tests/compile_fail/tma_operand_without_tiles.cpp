// expect: KV operand: .*create_tma_tile.* is missing .StridedTmaTiles
// lines: 1
#include "complete_tma.h"

struct Operand : Rows<float>, hyla::attention::KvOperandBase<Operand, float> {
  std::int64_t num_kv_rows() const { return 4; }
};

void call(const hyla::attention::RunParams& params, const hyla::TensorView& lists,
          const Operand& k) {
  hyla::attention::reference::run_sparse(params, k, k, 1, lists);
}
