#include <algorithm>

#include "device/launch.h"
#include "ops/causal_conv1d/access.h"
#include "ops/causal_conv1d/kernel_rows.cuh"
#include "ops/causal_conv1d/launch_conv.h"
#include "ops/causal_conv1d/select_runs.cuh"

namespace hyla::conv {
namespace {

struct Kernels {
  template <class Io, int W, bool wide>
  static constexpr auto kernel = convolve_rows<Io, W, wide ? kRowVec : 1>;
};

bool is_wide(const Problem& p) { return has_wide_channels(p, kRowVec); }

// Few long rows have many runs of tokens under way in a CTA; where there are more of them than the
// machine holds, smaller CTAs hide each other's waits; short rows have many channels.
struct Plan {
  std::int64_t runs, channel_threads, channel_blocks;
};

Plan plan_of(const Problem& p) {
  constexpr std::int64_t kFewest = 16;       // threads along the channels: a line of memory
  constexpr std::int64_t kFewThreads = 128;  // of a CTA among many
  constexpr std::int64_t kSms = 132;
  const std::int64_t rows = std::max<std::int64_t>(1, p.sequences.rows);
  const std::int64_t tokens = p.sequences.ragged() ? p.sequences.tokens / rows : p.sequences.tokens;
  const std::int64_t run = p.x.dtype == DType::kFloat32 ? kRowRun<float> : kRowRun<__half>;
  const std::int64_t vec = is_wide(p) ? kRowVec : 1;
  const auto blocks = [&](std::int64_t threads) {
    return std::max<std::int64_t>(1, (p.C + threads * vec - 1) / (threads * vec));
  };
  std::int64_t runs = 1;
  while (runs * run < tokens && runs * kFewest < kRowThreads) runs *= 2;
  const std::int64_t most_ctas = rows * blocks(kFewest);
  while (kFewest * runs > kFewThreads && most_ctas * kFewest * runs / 2 >= kSms * kRowThreads) {
    runs /= 2;
  }
  const std::int64_t threads = std::max(kFewest, kFewThreads / runs);
  return {runs, threads, blocks(threads)};
}

void run(ConvArguments& arguments, const Context& context) {
  const Problem& p = arguments.p;
  if (p.sequences.rows == 0 || p.C == 0) return;
  const Plan plan = plan_of(p);
  arguments.channel_blocks = static_cast<std::uint32_t>(plan.channel_blocks);
  arguments.filter = filter_of(p);
  arguments.windows = windows_of(p, is_wide(p));
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.sequences.rows * plan.channel_blocks));
  shape.block = dim3(static_cast<unsigned>(plan.channel_threads), static_cast<unsigned>(plan.runs));
  device::launch(select_runs<Kernels>(p, is_wide(p)), shape, arguments, context);
}

}  // namespace

const char* rows_refuses(const Problem& p, const Context& context) {
  constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;
  if (const char* reason = device::refuses_device(context)) return reason;
  return p.sequences.rows > kMaxCtas / plan_of(p).channel_blocks
             ? "more rows and channels than a grid"
             : nullptr;
}

void launch_rows(const PrefillProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments = arguments_of(p);
  run(arguments, context);
}

void launch_rows(const UpdateProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments = arguments_of(p);
  run(arguments, context);
}

}  // namespace hyla::conv
