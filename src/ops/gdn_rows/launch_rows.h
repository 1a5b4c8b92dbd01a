// Host side of kernel_rows.cuh, for the tables of decode, MTP and recurrence.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_decode.h"
#include "problem/gdn_mtp.h"
#include "problem/gdn_recurrence.h"

namespace hyla::gdn {

const char* rows_refuses(const Problem& problem, const Context& context);
void launch_rows(const DecodeProblem&, const Workspace&, const Context&);
void launch_rows(const MtpProblem&, const Workspace&, const Context&);
void launch_rows(const RecurrenceProblem&, const Workspace&, const Context&);

}  // namespace hyla::gdn
