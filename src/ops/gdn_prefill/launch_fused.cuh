// One instance of each tile kernel an input dtype, each dtype compiled in files of its own.
#pragma once

#include "device/launch.h"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

void launch_fused_bf16(const FusedArguments&, unsigned ctas, const Context&);
void launch_fused_f16(const FusedArguments&, unsigned ctas, const Context&);

// States between segments for these (kernel_walk.cuh), and what stands in front of it.
void launch_walks_bf16(const FusedArguments&, unsigned ctas, const Context&);
void launch_walks_f16(const FusedArguments&, unsigned ctas, const Context&);
void launch_starts(const FusedArguments&, const Context&);

// Warpgroups of a CTA that prepare a chunk each.
inline constexpr int kPrepareGroups = 4;

struct SplitShape {
  unsigned tasks;  // heads of sequences
  unsigned prepare_ctas;
  unsigned blocks, blocks_a_cta;  // of 64 value rows; one or two a CTA
};
void launch_split_bf16(const FusedArguments&, const SplitShape&, const Context&);
void launch_split_f16(const FusedArguments&, const SplitShape&, const Context&);
// The same for K above 128: no transfers, and no parts with two blocks a CTA.
void launch_wide_bf16(const FusedArguments&, const SplitShape&, const Context&);
void launch_wide_f16(const FusedArguments&, const SplitShape&, const Context&);
void launch_states(const FusedArguments&, const Context&);

}  // namespace hyla::gdn
