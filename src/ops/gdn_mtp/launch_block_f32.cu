#include "ops/gdn_mtp/select_block.cuh"

namespace hyla::gdn {

MtpBlockKernel select_block_f32(const BlockChoice& choice) { return select_block<float>(choice); }

}  // namespace hyla::gdn
