// Host side of kernel_rows.cuh, for the tables of decode, MTP and recurrence.
#pragma once

#include "problem/gdn_mtp.h"

namespace hyla::gdn {

const char* rows_refuses(const MtpProblem& problem, const Context& context);
void launch_rows(const MtpProblem& problem, const Context& context);

}  // namespace hyla::gdn
