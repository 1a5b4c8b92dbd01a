#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_vk_bf16(const DecodeChoice& choice) {
  return select_decode<VkKernels<__nv_bfloat16>>(choice);
}

}  // namespace hyla::gdn
