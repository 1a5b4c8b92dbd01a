#include <algorithm>
#include <bit>

#include "device/launch.h"
#include "ops/causal_conv1d/access.h"
#include "ops/causal_conv1d/kernel_runs.cuh"
#include "ops/causal_conv1d/launch_conv.h"
#include "ops/causal_conv1d/select_runs.cuh"

namespace hyla::conv {
namespace {

struct Kernels {
  template <class Io, int W, bool wide>
  static constexpr auto kernel = convolve<Io, W, wide ? kVec : 1>;
};

// Tokens of a CTA: long runs spare its start, short ones fill the machine. At least kFullCtas.
constexpr std::int64_t kShortestRun = 16, kLongestRun = 64;
constexpr std::int64_t kFullCtas = 132 * 6 * 4;
constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Plan {
  std::int64_t run;           // tokens
  std::int64_t runs_per_row;  // 0: by cu_seqlens
  std::int64_t items;         // CTAs along the tokens
};

Plan plan_of(const core::Sequences& sequences, std::int64_t channel_blocks) {
  const std::int64_t tokens =
      sequences.ragged() ? sequences.tokens : sequences.tokens * sequences.rows;
  Plan plan{kLongestRun, 0, 0};
  while (plan.run > kShortestRun && tokens / plan.run * channel_blocks < kFullCtas) plan.run /= 2;
  if (sequences.cu_seqlens.present()) {
    plan.items = sequences.tokens / plan.run + sequences.rows;
    return plan;
  }
  plan.runs_per_row = std::max<std::int64_t>(1, ceil_divide(sequences.tokens, plan.run));
  // Where the lengths of rows are known to the device alone, the CTAs of a row take its runs in
  // turns, as many as a full machine has for it.
  if (sequences.ragged()) {
    plan.runs_per_row =
        std::min(plan.runs_per_row, ceil_divide(kFullCtas, channel_blocks * sequences.rows));
  }
  plan.items = plan.runs_per_row * sequences.rows;
  return plan;
}

bool is_wide(const Problem& p) { return has_wide_channels(p, kVec); }

std::int64_t channel_blocks(const Problem& p) {
  return ceil_divide(p.C, kThreads * (is_wide(p) ? kVec : 1));
}

void run(ConvArguments& arguments, const Context& context) {
  const Problem& p = arguments.p;
  if (p.sequences.rows == 0 || p.C == 0) return;
  const bool wide = is_wide(p);
  const Plan plan = plan_of(p.sequences, channel_blocks(p));
  arguments.channel_blocks = static_cast<std::uint32_t>(channel_blocks(p));
  arguments.run_log2 = std::countr_zero(static_cast<std::uint64_t>(plan.run));
  arguments.runs_per_row = static_cast<std::uint32_t>(plan.runs_per_row);
  arguments.filter = filter_of(p);
  arguments.windows = windows_of(p, wide);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.items * channel_blocks(p)));
  shape.block = dim3(kThreads);
  device::launch(select_runs<Kernels>(p, wide), shape, arguments, context);
}

}  // namespace

const char* runs_refuses(const Problem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.in_place) return "a run reads inputs of the one before: takes an out apart from x";
  const std::int64_t blocks = std::max<std::int64_t>(1, channel_blocks(p));
  const std::int64_t items = p.sequences.rows == 0 ? 0 : plan_of(p.sequences, blocks).items;
  return items > kMaxCtas / blocks ? "more tokens and channels than a grid" : nullptr;
}

void launch_runs(const PrefillProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments = arguments_of(p);
  run(arguments, context);
}

void launch_runs(const UpdateProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments = arguments_of(p);
  run(arguments, context);
}

}  // namespace hyla::conv
