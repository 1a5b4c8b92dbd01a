// The Gated DeltaNet operations on vectors and threads. Each function exists for every target, and
// refuses what the target or its kernels do not take.
#pragma once

#include <hyla/workspace.h>

#include "cpu/target.h"
#include "problem/gdn_decode.h"
#include "problem/gdn_mtp.h"
#include "problem/gdn_prefill.h"
#include "problem/gdn_recurrence.h"

namespace hyla::cpu {

const char* rows_refuses(Target target, const gdn::Problem& p);
void run_rows(Target target, const gdn::MtpProblem& p, const Context& context);

template <Target kTarget, class Problem>
const char* rows_refuses(const Problem& p, const Context&) {
  return rows_refuses(kTarget, p);
}
template <Target kTarget>
void decode(const gdn::DecodeProblem& p, const Workspace&, const Context& context) {
  run_rows(kTarget, gdn::as_mtp(p), context);
}
template <Target kTarget>
void recurrence(const gdn::RecurrenceProblem& p, const Workspace&, const Context& context) {
  run_rows(kTarget, gdn::as_mtp(p), context);
}
template <Target kTarget>
void mtp(const gdn::MtpProblem& p, const Workspace&, const Context& context) {
  run_rows(kTarget, p, context);
}

const char* prefill_refuses(Target target, const gdn::PrefillProblem& p);
void run_prefill(Target target, const gdn::PrefillProblem& p, const Context& context);

template <Target kTarget>
const char* prefill_refuses(const gdn::PrefillProblem& p, const Context&) {
  return prefill_refuses(kTarget, p);
}
template <Target kTarget>
void prefill(const gdn::PrefillProblem& p, const Workspace&, const Context& context) {
  run_prefill(kTarget, p, context);
}

}  // namespace hyla::cpu
