// expect: run_sparse: an encoded index finds values, not scales
// lines: 1
#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operands.h>

#include <cstdint>

void call(const hyla::attention::RunParams& params, const hyla::TensorView& lists,
          const hyla::attention::PagedOperand<std::int8_t, 16, float>& k) {
  hyla::attention::reference::run_sparse(params, k, k, 1, lists);
}
