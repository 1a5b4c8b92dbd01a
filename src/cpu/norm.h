// The gated RMSNorm on vectors and threads.
#pragma once

#include <hyla/workspace.h>

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/norm.h"

namespace hyla::cpu {

struct NormKernels {
  // Rows of the token-major list of (token, head).
  void (*run)(const norm::GatedRmsProblem& p, Range rows);
  // The gates of 16-bit results before anything is rounded, in place: tests hold them against the
  // bound of quick_sigmoid.h.
  void (*quick_gates)(bool silu, float* z, std::int64_t count);
};
const NormKernels& norm_kernels(Target target);

void run_norm(Target target, const norm::GatedRmsProblem& p, const Context& context);

}  // namespace hyla::cpu
