// The workspace bound of attention.run: the most that any implementation needs.
#include <hyla/attention.h>

#include "core/check.h"
#ifdef HYLA_HAS_CUDA
#include "device/launch.h"
#include "ops/attention/mixed.h"
#include "ops/attention_decode/plan.h"
#include "ops/attention_prefill/launch_prefill.h"
#endif

namespace hyla::attention {

std::size_t run_workspace_bytes(const RunBounds& bounds) {
  const auto check = [](const char* argument, std::int64_t value) {
    if (value < 0) core::fail(argument, "a number >= 0", core::text(value));
  };
  check("max_sequences", bounds.max_sequences);
  check("max_tokens", bounds.max_tokens);
  check("max_kv_length", bounds.max_kv_length);
  check("query_heads", bounds.query_heads);
  check("kv_heads", bounds.kv_heads);
  check("head_dim", bounds.head_dim);
  check("value_dim", bounds.value_dim);
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
