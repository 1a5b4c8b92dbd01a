#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.populate<64, 64>(0, 0);
}
