#include "cpu/conv.h"

#include <algorithm>

namespace hyla::cpu {
namespace {

// Fewer inputs than this are not worth waking a thread.
constexpr std::int64_t kLeastWork = 8 << 10;

std::int64_t blocks(const conv::Problem& p) { return (p.C + kConvChannels - 1) / kConvChannels; }

template <class Problem>
void run_units(const Problem& p, void (*run)(const Problem&, Range), const Context& context) {
  const std::int64_t units = blocks(p) * p.sequences.rows;
  if (units == 0) return;
  const std::int64_t tokens =
      p.sequences.ragged() ? p.sequences.tokens / p.sequences.rows : p.sequences.tokens;
  const std::int64_t least = kLeastWork / (kConvChannels * std::max<std::int64_t>(1, tokens));
  parallel_ranges(context, units, std::max<std::int64_t>(1, least),
                  [&](std::int64_t begin, std::int64_t end) {
                    run(p, {begin, end});
                  });
}

}  // namespace

const char* conv_refuses(Target target, const conv::Problem& p) {
  if (const char* reason = refuses(target)) return reason;
  if (p.x.head_stride != 1 || p.out.head_stride != 1) {
    return "takes x and out with contiguous channels";
  }
  if (p.state.present() && p.state.columns > kConvColumns) {
    return "takes pools of up to 32 columns";
  }
  return nullptr;
}

void run_conv(Target target, const conv::PrefillProblem& p, const Context& context) {
  run_units(p, conv_kernels(target).prefill, context);
}

void run_conv(Target target, const conv::UpdateProblem& p, const Context& context) {
  run_units(p, conv_kernels(target).update, context);
}

}  // namespace hyla::cpu
