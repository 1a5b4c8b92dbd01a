#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_vk_f16(const DecodeChoice& choice) {
  return select_decode<VkKernels<__half>>(choice);
}

}  // namespace hyla::gdn
