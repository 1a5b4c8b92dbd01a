// expect: block_paged_ptr: a tile lies inside one page
// lines: 1
#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.block_paged_ptr<128>(0, 0, 0);
}
