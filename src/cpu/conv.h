// The causal convolutions on vectors and threads.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/conv.h"

namespace hyla::cpu {

inline constexpr std::int64_t kConvChannels = 1024;  // of a block, at most: they lie on the stack
inline constexpr std::int64_t kConvColumns = 32;     // of a pool, at most
inline constexpr std::int64_t kConvPast = 4096;      // channels of a block times columns, at most

// A unit of work is a row and a block of `width` channels; rows inside. Channels do not depend on
// each other, so the bits of a result do not depend on the width.
struct ConvKernels {
  void (*prefill)(const conv::PrefillProblem& p, std::int64_t width, Range units);
  void (*update)(const conv::UpdateProblem& p, std::int64_t width, Range units);
};
const ConvKernels& conv_kernels(Target target);

const char* conv_refuses(const conv::Problem& p);
void run_conv(Target target, const conv::PrefillProblem& p, const Context& context);
void run_conv(Target target, const conv::UpdateProblem& p, const Context& context);

}  // namespace hyla::cpu
