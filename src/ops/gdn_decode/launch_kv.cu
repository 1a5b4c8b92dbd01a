#include "ops/gdn_decode/launch_kv.cuh"

#include "ops/gdn_decode/launch.h"

namespace hyla::gdn {
namespace {

KvLaunch variant(const DecodeProblem& p, bool usual) {
  const int size = static_cast<int>(size_of(p.initial.dtype));
  const bool small = is_small_kv(p.sequences.rows * p.heads * p.K * p.V * size, size);
  if (p.initial.dtype == DType::kFloat32) return select_kv_f32(p.q.dtype, p.K, usual, small);
  if (p.initial.dtype == DType::kBFloat16) return select_kv_bf16(p.q.dtype, p.K, usual, small);
  return select_kv_f16(p.q.dtype, p.K, usual, small);
}

}  // namespace

const char* decode_kv_refuses(const DecodeProblem& p, const Context& context) {
  if (p.layout != StateLayout::kKV) return "takes states [.., K, V]";
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.V % (p.initial.dtype == DType::kFloat32 ? 32 : 64) != 0) {
    return "takes V that fills 128-byte lines";
  }
  return decode_refuses(p, context);
}

void launch_decode_kv(const DecodeProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const HostArguments arguments = decode_arguments(p);
  const KvLaunch launch = variant(p, arguments.usual);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.V / launch.columns_per_cta),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(static_cast<unsigned>(launch.threads));
  device::launch(launch.kernel, shape, arguments.device, context);
}

}  // namespace hyla::gdn
