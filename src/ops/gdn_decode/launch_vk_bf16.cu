#include "ops/gdn_decode/launch_vk.cuh"

namespace hyla::gdn {

VkLaunch select_vk_bf16(DType io, std::int64_t K, bool usual, bool small) {
  return select_vk<__nv_bfloat16>(io, K, usual, small);
}

}  // namespace hyla::gdn
