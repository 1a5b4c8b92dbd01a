#include "device/launch.h"
#include "ops/causal_conv1d/access.h"
#include "ops/causal_conv1d/kernel_drafts.cuh"
#include "ops/causal_conv1d/launch_conv.h"
#include "ops/causal_conv1d/select_step.cuh"

namespace hyla::conv {
namespace {

// A thread walks all tokens of its row: longer rows are better cut into runs.
constexpr std::int64_t kMostTokens = 64;

struct Kernels {
  template <class Io, class State, int W, Windows kWindows>
  static auto kernel(const Problem&) {
    return drafts<StepPolicy<Io, State, W, kWindows, 1>>;
  }
};

}  // namespace

const char* drafts_refuses(const UpdateProblem& p, const Context& context) {
  if (const char* reason = step_refuses_windows(p, context)) return reason;
  if (p.window_offsets.present() && !has_channel_windows(p)) {
    return "takes windows at an offset with the channels side by side";
  }
  const std::int64_t rows = p.sequences.ragged() ? p.sequences.rows : 1;
  if (p.sequences.tokens > kMostTokens * rows) return "takes up to 64 tokens a row";
  return too_large_for_steps(p, 1) ? "more rows and channels than a grid" : nullptr;
}

void launch_drafts(const UpdateProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0 || p.C == 0) return;
  const DraftArguments arguments{
      .step = step_arguments(p),
      .sequences = p.sequences,
      .total = p.sequences.tokens,
      .x_token_stride = p.x.token_stride,
      .out_token_stride = p.out.token_stride,
      .columns = p.state.columns,
      .commit_lengths = p.commit_lengths,
  };
  const Windows windows =
      p.window_offsets.present() || !has_dense_windows(p) ? Windows::kChannels : Windows::kDense;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.sequences.rows * channel_blocks(p)));
  shape.block = dim3(kStepThreads);
  device::launch(select_step<Kernels>(p, windows), shape, arguments, context);
}

}  // namespace hyla::conv
