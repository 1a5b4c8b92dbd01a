#include "ops/attention_prefill/launch_widening.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/attention_prefill/widening.cuh"

namespace hyla::attention {

void launch_widening(const Widening& widening, DType dtype, int processors,
                     const Context& context) {
  constexpr int kCtasOfProcessor = 4;
  const std::int64_t shares = widening.room / kWideningTokens * std::int64_t{widening.kv_heads};
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::clamp<std::int64_t>(
      (shares + kWideningWarps - 1) / kWideningWarps, 1, kCtasOfProcessor * processors)));
  shape.block = dim3(32 * kWideningWarps);
  shape.programmatic = true;
  const bool integers = widening.keys.from.integers;
  if (dtype == DType::kBFloat16) {
    device::launch(integers ? widen_rows<__nv_bfloat16, true> : widen_rows<__nv_bfloat16, false>,
                   shape, widening, context);
  } else {
    device::launch(integers ? widen_rows<__half, true> : widen_rows<__half, false>, shape, widening,
                   context);
  }
}

}  // namespace hyla::attention
