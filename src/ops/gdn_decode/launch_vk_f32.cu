#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_vk_f32(const DecodeChoice& choice) {
  return select_decode<VkKernels<float>>(choice);
}

}  // namespace hyla::gdn
