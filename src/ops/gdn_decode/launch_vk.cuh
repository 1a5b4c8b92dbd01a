// The VK kernels of one state dtype; each is compiled in a file of its own to keep the build
// parallel.
#pragma once

#include "device/launch.h"
#include "ops/gdn_decode/arguments.h"
#include "ops/gdn_decode/kernel_vk.cuh"
#include "ops/gdn_decode/policy.h"

namespace hyla::gdn {

struct VkLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int rows_per_cta = 0, threads = 0;
};

template <class P>
VkLaunch vk_launch() {
  return {decode_vk<P>, P::kRows * P::kWarps, P::kWarps * 32};
}

template <class State, class Io, int K>
VkLaunch select_vk(bool usual, bool small) {
  if (!usual)
    return vk_launch<DecodeVkPolicy<State, Io, Options::kAny, K, kLargeVk.loads, kLargeVk.warps>>();
  if (small)
    return vk_launch<
        DecodeVkPolicy<State, Io, Options::kUsual, K, kSmallVk.loads, kSmallVk.warps>>();
  return vk_launch<DecodeVkPolicy<State, Io, Options::kUsual, K, kLargeVk.loads, kLargeVk.warps>>();
}

template <class State, class Io>
VkLaunch select_vk(std::int64_t K, bool usual, bool small) {
  if (K == 64) return select_vk<State, Io, 64>(usual, small);
  return K == 128 ? select_vk<State, Io, 128>(usual, small)
                  : select_vk<State, Io, 256>(usual, small);
}

template <class State>
VkLaunch select_vk(DType io, std::int64_t K, bool usual, bool small) {
  if (io == DType::kFloat32) return select_vk<State, float>(K, usual, small);
  if (io == DType::kBFloat16) return select_vk<State, __nv_bfloat16>(K, usual, small);
  return select_vk<State, __half>(K, usual, small);
}

VkLaunch select_vk_f32(DType io, std::int64_t K, bool usual, bool small);
VkLaunch select_vk_bf16(DType io, std::int64_t K, bool usual, bool small);
VkLaunch select_vk_f16(DType io, std::int64_t K, bool usual, bool small);

}  // namespace hyla::gdn
