// Host side of kernel_mtp_vk.cuh, for the table.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_mtp.h"

namespace hyla::gdn {

const char* mtp_vk_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_vk(const MtpProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::gdn
