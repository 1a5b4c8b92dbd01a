#include "ops/causal_conv1d/launch_conv.h"
#include "ops/causal_conv1d/select_step.cuh"

namespace hyla::conv {
namespace {

// From here on two rows in flight are worth the longer chain of a thread. NVIDIA H200, 8192
// channels: 128 rows 6.4 us by two, 7.1 by one; 32 rows 3.7 by two, 3.4 by one.
constexpr std::int64_t kManyRows = 64;

std::int64_t rows_at_once(const Problem& p) { return p.sequences.rows >= kManyRows ? 2 : 1; }

struct Kernels {
  template <class Io, class State, int W, Windows kWindows>
  static auto kernel(const Problem& p) {
    return rows_at_once(p) == 2 ? step<StepPolicy<Io, State, W, kWindows, 2>>
                                : step<StepPolicy<Io, State, W, kWindows, 1>>;
  }
};

}  // namespace

const char* step_refuses(const UpdateProblem& p, const Context& context) {
  if (p.sequences.ragged() || p.sequences.tokens != 1) return "takes one token a row";
  if (p.commit_lengths.present()) return "takes no commit lengths";
  if (const char* reason = step_refuses_windows(p, context)) return reason;
  return too_large_for_steps(p, rows_at_once(p)) ? "more rows and channels than a grid" : nullptr;
}

void launch_step(const UpdateProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0 || p.C == 0) return;
  const std::int64_t rows = rows_at_once(p);
  const Windows windows = has_dense_windows(p) ? Windows::kDense : Windows::kChannels;
  device::LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>((p.sequences.rows + rows - 1) / rows * channel_blocks(p)));
  shape.block = dim3(kStepThreads);
  device::launch(select_step<Kernels>(p, windows), shape, step_arguments(p), context);
}

}  // namespace hyla::conv
