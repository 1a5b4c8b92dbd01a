#include "cpu/conv.h"

#include <algorithm>

namespace hyla::cpu {
namespace {

// Fewer inputs than this are not worth waking a thread.
constexpr std::int64_t kLeastWork = 8 << 10;

std::int64_t blocks(const conv::Problem& p, std::int64_t width) {
  return (p.C + width - 1) / width;
}

// Wide blocks read memory in long runs, which matters to long rows; what short rows need of a
// narrower one stays in the first cache.
std::int64_t block_width(const conv::Problem& p, std::int64_t tokens, int threads) {
  constexpr std::int64_t kLong = 16, kShortRows = 512, kLeast = 128;
  std::int64_t width = tokens < kLong ? kShortRows : kConvChannels;
  const std::int64_t columns = std::max(p.W - 1, p.state.columns);
  width = std::min(width, kConvPast / columns / kLeast * kLeast);
  while (width > kLeast && blocks(p, width) * p.sequences.rows < 2 * threads) width -= kLeast;
  return width;
}

template <class Problem>
void run_units(const Problem& p, void (*run)(const Problem&, std::int64_t, Range),
               const Context& context) {
  if (p.C == 0 || p.sequences.rows == 0) return;
  const std::int64_t tokens =
      p.sequences.ragged() ? p.sequences.tokens / p.sequences.rows : p.sequences.tokens;
  const std::int64_t width = block_width(p, tokens, thread_count(context));
  const std::int64_t units = blocks(p, width) * p.sequences.rows;
  const std::int64_t least = kLeastWork / (width * std::max<std::int64_t>(1, tokens));
  parallel_ranges(context, units, std::max<std::int64_t>(1, least),
                  [&](std::int64_t begin, std::int64_t end) {
                    run(p, width, {begin, end});
                  });
}

}  // namespace

const char* conv_refuses(const conv::Problem& p) {
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
