#include <algorithm>
#include <bit>

#include "device/launch.h"
#include "ops/causal_conv1d/access.h"
#include "ops/causal_conv1d/kernel_runs.cuh"
#include "ops/causal_conv1d/launch_conv.h"

namespace hyla::conv {
namespace {

using Kernel = void (*)(ConvArguments);

// Tokens of a CTA: long runs spare its start, short ones fill the machine. At least kFullCtas.
constexpr std::int64_t kShortestRun = 16, kLongestRun = 64;
constexpr std::int64_t kFullCtas = 132 * 6 * 4;
constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;

template <class Io, int W>
Kernel select(bool wide) {
  return wide ? convolve<Io, W, kVec> : convolve<Io, W, 1>;
}

template <class Io>
Kernel select(std::int64_t W, bool wide) {
  if (W == 2) return select<Io, 2>(wide);
  return W == 3 ? select<Io, 3>(wide) : select<Io, 4>(wide);
}

Kernel select(const Problem& p, bool wide) {
  if (p.x.dtype == DType::kFloat32) return select<float>(p.W, wide);
  if (p.x.dtype == DType::kBFloat16) return select<__nv_bfloat16>(p.W, wide);
  return select<__half>(p.W, wide);
}

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

void run(ConvArguments arguments, const Context& context) {
  const Problem& p = arguments.p;
  if (p.sequences.rows == 0 || p.C == 0) return;
  const bool wide = is_wide(p);
  const Plan plan = plan_of(p.sequences, channel_blocks(p));
  arguments.channel_blocks = static_cast<std::uint32_t>(channel_blocks(p));
  arguments.run_log2 = std::countr_zero(static_cast<std::uint64_t>(plan.run));
  arguments.runs_per_row = static_cast<std::uint32_t>(plan.runs_per_row);
  arguments.filter = filter_of(p);
  if (wide) {
    arguments.windows = has_dense_windows(p)     ? Windows::kDense
                        : has_channel_windows(p) ? Windows::kChannels
                                                 : Windows::kScattered;
  }
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.items * channel_blocks(p)));
  shape.block = dim3(kThreads);
  device::launch(select(p, wide), shape, arguments, context);
}

}  // namespace

const char* runs_refuses(const Problem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  const std::int64_t blocks = std::max<std::int64_t>(1, channel_blocks(p));
  const std::int64_t items = p.sequences.rows == 0 ? 0 : plan_of(p.sequences, blocks).items;
  return items > kMaxCtas / blocks ? "more tokens and channels than a grid" : nullptr;
}

void launch_runs(const PrefillProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments{};
  arguments.p = p;
  arguments.total = p.sequences.tokens;
  arguments.has_initial_state = p.has_initial_state;
  arguments.checkpoint_offsets = p.checkpoint_offsets;
  arguments.checkpoint_slots = p.checkpoint_slots;
  run(arguments, context);
}

void launch_runs(const UpdateProblem& p, const Workspace&, const Context& context) {
  ConvArguments arguments{};
  arguments.p = p;
  arguments.total = p.sequences.tokens;
  arguments.commit_lengths = p.commit_lengths;
  arguments.update = true;
  run(arguments, context);
}

}  // namespace hyla::conv
