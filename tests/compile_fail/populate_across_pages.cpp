// expect: populate: pages smaller than the tile need a base_alignment of whole pages
// lines: 1
#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.populate<128, 32>(0, 0);
}
