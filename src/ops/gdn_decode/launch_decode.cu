#include "device/launch.h"
#include "ops/gdn_decode/arguments.h"
#include "ops/gdn_decode/launch.h"
#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {
namespace {

DecodeLaunch select(const DecodeProblem& p, bool usual, bool invariant) {
  const DType state = p.initial.dtype;
  const auto size = static_cast<std::int64_t>(size_of(state));
  const DecodeChoice choice{
      .io = p.q.dtype,
      .K = p.K,
      .V = p.V,
      .usual = usual,
      .invariant = invariant,
      .gated = p.norm.present(),
      .dense = (p.layout == StateLayout::kVK ? p.initial.v_stride : p.initial.k_stride) == p.K,
      .state_bytes = p.sequences.rows * p.heads * p.K * p.V * size,
  };
  if (p.layout == StateLayout::kVK) {
    if (state == DType::kFloat32) return select_vk_f32(choice);
    return state == DType::kBFloat16 ? select_vk_bf16(choice) : select_vk_f16(choice);
  }
  if (state == DType::kFloat32) return select_kv_f32(choice);
  return state == DType::kBFloat16 ? select_kv_bf16(choice) : select_kv_f16(choice);
}

}  // namespace

const char* decode_vk_refuses(const DecodeProblem& p, const Context& context) {
  if (p.layout != StateLayout::kVK) return "takes states [.., V, K]";
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.V % 32 != 0) return "takes V that is a multiple of 32";
  return decode_refuses(p, context);
}

const char* decode_kv_refuses(const DecodeProblem& p, const Context& context) {
  if (p.layout != StateLayout::kKV) return "takes states [.., K, V]";
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.V % 64 != 0) return "takes V that is a multiple of 64";
  return decode_refuses(p, context);
}

void launch_decode(const DecodeProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const HostArguments arguments = decode_arguments(p);
  const DecodeLaunch launch = select(p, arguments.usual, context.batch_invariant);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.V) / static_cast<unsigned>(launch.values),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(static_cast<unsigned>(launch.threads));
  shape.shared_bytes = launch.stage_bytes;
  if (p.norm.present()) shape.cluster = shape.grid.x;
  device::launch(launch.kernel, shape, arguments.device, context);
}

}  // namespace hyla::gdn
