// The Gated DeltaNet operations on vectors and threads, and why they do not take a problem.
#pragma once

#include <hyla/workspace.h>

#include "cpu/target.h"
#include "problem/gdn_decode.h"
#include "problem/gdn_mtp.h"
#include "problem/gdn_prefill.h"
#include "problem/gdn_recurrence.h"

namespace hyla::cpu {

const char* rows_refuses(const gdn::Problem& p);
const char* rows_amx_refuses(const gdn::MtpProblem& p);
void run_rows(Target target, const gdn::MtpProblem& p, const Context& context);
void run_decode(Target target, const gdn::DecodeProblem& p, const Context& context);
inline void run_recurrence(Target target, const gdn::RecurrenceProblem& p, const Context& context) {
  run_rows(target, gdn::as_mtp(p), context);
}

// Of a prefill that rows_refuses takes, the rows that are short (gdn_rows.h).
void run_short_rows(Target target, const gdn::PrefillProblem& p, const Context& context);

const char* prefill_refuses(const gdn::PrefillProblem& p);
const char* prefill_amx_refuses(const gdn::PrefillProblem& p);
void run_prefill(Target target, const gdn::PrefillProblem& p, const Context& context);

}  // namespace hyla::cpu
