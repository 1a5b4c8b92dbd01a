// Host side of kernel_mtp_vk.cuh, for the tables of MTP and recurrence.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_mtp.h"
#include "problem/gdn_recurrence.h"

namespace hyla::gdn {

const char* mtp_vk_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_vk(const MtpProblem& problem, const Workspace&, const Context& context);

const char* mtp_vk_refuses(const RecurrenceProblem& problem, const Context& context);
void launch_mtp_vk(const RecurrenceProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::gdn
