// Host side of the kernels for MTP problems; decode and recurrence are such problems too.
#pragma once

#include "problem/gdn_mtp.h"

namespace hyla::gdn {

// One token after another, states [.., V, K] (kernel_mtp_vk.cuh) and [.., K, V]
// (kernel_mtp_kv.cuh).
const char* mtp_vk_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_vk(const MtpProblem& problem, const Context& context);
const char* mtp_kv_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_kv(const MtpProblem& problem, const Context& context);

// A block of tokens at a time (kernel_mtp_block.cuh).
const char* mtp_block_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_block(const MtpProblem& problem, const Context& context);

}  // namespace hyla::gdn
