#include "ops/gdn_mtp/select_block.cuh"

namespace hyla::gdn {

MtpBlockKernel select_block_f16(const BlockChoice& choice) { return select_block<__half>(choice); }

}  // namespace hyla::gdn
