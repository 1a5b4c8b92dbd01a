// What the launchers of kernel_step.cuh and kernel_drafts.cuh share: which problems they take,
// their arguments, and the instantiation for a problem's dtypes, width and windows.
#pragma once

#include <algorithm>

#include "device/launch.h"
#include "ops/causal_conv1d/access.h"
#include "ops/causal_conv1d/kernel_step.cuh"

namespace hyla::conv {

inline const char* step_refuses_windows(const UpdateProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.state.dtype != p.x.dtype && p.state.dtype != DType::kFloat32) {
    return "takes windows in the dtype of x or in float32";
  }
  if (!has_wide_channels(p, kStepVec)) return "channels that are not aligned for vector loads";
  const bool moved_whole = p.window_offsets.present() || p.state.columns == p.W - 1;
  if (!has_dense_windows(p) && !(has_channel_windows(p) && moved_whole)) {
    return "takes windows of W-1 columns, or with the channels side by side at an offset";
  }
  return nullptr;
}

inline std::int64_t channel_blocks(const Problem& p) {
  constexpr std::int64_t kPerCta = kStepThreads * kStepVec;
  return std::max<std::int64_t>(1, (p.C + kPerCta - 1) / kPerCta);
}

inline bool too_large_for_steps(const Problem& p, std::int64_t rows_at_once) {
  constexpr std::int64_t kMaxCtas = (std::int64_t{1} << 31) - 1;
  return p.sequences.rows / rows_at_once >= kMaxCtas / channel_blocks(p);
}

inline StepArguments step_arguments(const Problem& p) {
  return {
      .x = p.x.data,
      .out = p.out.data,
      .state = p.state.data,
      .rows = p.sequences.rows,
      .C = p.C,
      .x_stride = p.x.row_stride,
      .out_stride = p.out.row_stride,
      .slot_stride = p.state.slot_stride,
      .channel_stride = p.state.channel_stride,
      .column_stride = p.state.column_stride,
      .last_offset = p.state.columns - (p.W - 1),
      .channel_blocks = static_cast<std::uint32_t>(channel_blocks(p)),
      .filter = filter_of(p),
      .slots = p.slots,
      .window_offsets = p.window_offsets,
  };
}

// Kernels::kernel<Io, State, W, windows>(problem) names one instantiation.
template <class Kernels, class Io, class State, Windows kWindows>
auto select_width(const Problem& p) {
  if (p.W == 2) return Kernels::template kernel<Io, State, 2, kWindows>(p);
  return p.W == 3 ? Kernels::template kernel<Io, State, 3, kWindows>(p)
                  : Kernels::template kernel<Io, State, 4, kWindows>(p);
}

template <class Kernels, class Io, class State>
auto select_windows(const Problem& p, Windows windows) {
  return windows == Windows::kDense ? select_width<Kernels, Io, State, Windows::kDense>(p)
                                    : select_width<Kernels, Io, State, Windows::kChannels>(p);
}

// Pools in the dtype of x, or in float32.
template <class Kernels, class Io>
auto select_state(const Problem& p, Windows windows) {
  if (p.state.dtype == DType::kFloat32) return select_windows<Kernels, Io, float>(p, windows);
  return select_windows<Kernels, Io, Io>(p, windows);
}

template <class Kernels>
auto select_step(const Problem& p, Windows windows) {
  if (p.x.dtype == DType::kFloat32) return select_windows<Kernels, float, float>(p, windows);
  if (p.x.dtype == DType::kBFloat16) return select_state<Kernels, __nv_bfloat16>(p, windows);
  return select_state<Kernels, __half>(p, windows);
}

}  // namespace hyla::conv
