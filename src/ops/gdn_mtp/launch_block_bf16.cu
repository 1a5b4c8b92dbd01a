#include "ops/gdn_mtp/select_block.cuh"

namespace hyla::gdn {

MtpBlockKernel select_block_bf16(const BlockChoice& choice) {
  return select_block<__nv_bfloat16>(choice);
}

}  // namespace hyla::gdn
