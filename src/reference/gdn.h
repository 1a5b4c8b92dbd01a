// The definition of the Gated DeltaNet operations: scalar, one token after another, in float64.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_decode.h"
#include "problem/gdn_mtp.h"
#include "problem/gdn_prefill.h"
#include "problem/gdn_recurrence.h"

namespace hyla::reference {

void decode(const gdn::DecodeProblem&, const Workspace&, const Context&);
void mtp(const gdn::MtpProblem&, const Workspace&, const Context&);
void prefill(const gdn::PrefillProblem&, const Workspace&, const Context&);
void recurrence(const gdn::RecurrenceProblem&, const Workspace&, const Context&);

}  // namespace hyla::reference
