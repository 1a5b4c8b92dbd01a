#include "ops/gdn_decode/launch_vk.cuh"

#include "ops/gdn_decode/launch.h"

namespace hyla::gdn {
namespace {

VkLaunch variant(const DecodeProblem& p, bool usual) {
  const int size = static_cast<int>(size_of(p.initial.dtype));
  const bool small = is_small_vk(p.sequences.rows * p.heads * p.K * p.V * size, size);
  if (p.initial.dtype == DType::kFloat32) return select_vk_f32(p.q.dtype, p.K, usual, small);
  if (p.initial.dtype == DType::kBFloat16) return select_vk_bf16(p.q.dtype, p.K, usual, small);
  return select_vk_f16(p.q.dtype, p.K, usual, small);
}

}  // namespace

const char* decode_vk_refuses(const DecodeProblem& p, const Context& context) {
  if (p.layout != StateLayout::kVK) return "takes states [.., V, K]";
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.V % 32 != 0) return "takes V that is a multiple of 32";
  return decode_refuses(p, context);
}

void launch_decode_vk(const DecodeProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const HostArguments arguments = decode_arguments(p);
  const VkLaunch launch = variant(p, arguments.usual);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.V / launch.rows_per_cta),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(static_cast<unsigned>(launch.threads));
  device::launch(launch.kernel, shape, arguments.device, context);
}

}  // namespace hyla::gdn
