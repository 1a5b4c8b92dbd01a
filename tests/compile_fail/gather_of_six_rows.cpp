// expect: create_gather4_tma_tile: tile_height is a multiple of 4
// lines: 1
#include <hyla/kv_operands.h>

auto call(const hyla::attention::PagedOperand<float, 64>& operand) {
  return operand.create_gather4_tma_tile<64, 64, hyla::attention::TensorMapSwizzle::kNone, 6>({});
}
