// expect: create_tma_tile: BK is a multiple of the swizzle
// lines: 1
#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.create_tma_tile<hyla::attention::TensorMapSwizzle::k128B, 64, 64, 48>({});
}
