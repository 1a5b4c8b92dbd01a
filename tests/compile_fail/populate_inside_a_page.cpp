// expect: populate: in a page as large as the tile, tiles must start at multiples of BN
// lines: 1
#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.populate<64, 16>(0, 0);
}
