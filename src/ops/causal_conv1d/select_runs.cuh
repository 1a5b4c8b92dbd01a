// What the launchers of kernel_runs.cuh and kernel_rows.cuh share: their arguments, and the
// instantiation for a problem's dtype and width.
#pragma once

#include "ops/causal_conv1d/access.h"

namespace hyla::conv {

inline Windows windows_of(const Problem& p, bool wide) {
  if (!wide) return Windows::kScattered;
  return has_dense_windows(p)     ? Windows::kDense
         : has_channel_windows(p) ? Windows::kChannels
                                  : Windows::kScattered;
}

inline ConvArguments arguments_of(const PrefillProblem& p) {
  ConvArguments arguments{};
  arguments.p = p;
  arguments.total = p.sequences.tokens;
  arguments.has_initial_state = p.has_initial_state;
  arguments.checkpoint_offsets = p.checkpoint_offsets;
  arguments.checkpoint_slots = p.checkpoint_slots;
  return arguments;
}

inline ConvArguments arguments_of(const UpdateProblem& p) {
  ConvArguments arguments{};
  arguments.p = p;
  arguments.total = p.sequences.tokens;
  arguments.commit_lengths = p.commit_lengths;
  arguments.update = true;
  return arguments;
}

// Kernels::kernel<Io, W, wide> names one instantiation; wide: channels in wide accesses.
template <class Kernels, class Io>
auto select_taps(std::int64_t W, bool wide) {
  if (W == 2)
    return wide ? Kernels::template kernel<Io, 2, true> : Kernels::template kernel<Io, 2, false>;
  if (W == 3)
    return wide ? Kernels::template kernel<Io, 3, true> : Kernels::template kernel<Io, 3, false>;
  return wide ? Kernels::template kernel<Io, 4, true> : Kernels::template kernel<Io, 4, false>;
}

template <class Kernels>
auto select_runs(const Problem& p, bool wide) {
  if (p.x.dtype == DType::kFloat32) return select_taps<Kernels, float>(p.W, wide);
  if (p.x.dtype == DType::kBFloat16) return select_taps<Kernels, __nv_bfloat16>(p.W, wide);
  return select_taps<Kernels, __half>(p.W, wide);
}

}  // namespace hyla::conv
