// The workspace bound of attention.run: the most that any implementation needs.
#include <hyla/attention.h>

#include "core/bounds.h"
#ifdef HYLA_HAS_CUDA
#include "device/launch.h"
#include "ops/attention/mixed.h"
#include "ops/attention_decode/plan.h"
#include "ops/attention_prefill/launch_prefill.h"
#endif

namespace hyla::attention {

std::size_t run_workspace_bytes(const RunBounds& bounds) {
  constexpr std::int64_t kMostKeys = std::int64_t{1} << 40, kMostDim = 576;
  core::check_range("max_sequences", bounds.max_sequences, 0, core::kMostRows);
  core::check_range("max_tokens", bounds.max_tokens, 0, core::kMostTokens);
  core::check_range("max_kv_length", bounds.max_kv_length, 0, kMostKeys);
  core::check_range("query_heads", bounds.query_heads, 0, core::kMostHeads);
  core::check_range("kv_heads", bounds.kv_heads, 0, core::kMostHeads);
  core::check_range("head_dim", bounds.head_dim, 0, kMostDim);
  core::check_range("value_dim", bounds.value_dim, 0, kMostDim);
#ifdef HYLA_HAS_CUDA
  Context context;
  context.device = bounds.device;
  if (bounds.device.kind == Device::Kind::kCuda && device::refuses_device(context) == nullptr) {
    const int processors = device::multiprocessors(context);
    return mixed_workspace_bytes(decode::workspace_bound(bounds, processors),
                                 attention_prefill_workspace_bound(bounds, processors));
  }
#endif
  return 0;
}

}  // namespace hyla::attention
