// Which decode kernel a problem gets, and what it needs. On the host.
#pragma once

#include <hyla/attention.h>

#include "ops/attention_decode/plan_queries.h"
#include "problem/attention.h"

namespace hyla::attention::decode {

const char* refuses(const RunProblem& problem, const Context& context);
// `most_packed`: only rows with at most so many packed query rows (q_len * Hq / Hk) are computed.
Plan make_plan(const RunProblem& problem, std::int64_t most_packed, int multiprocessors);
// For rows of at most kWarpRows packed query rows, each with bits that are its own.
Plan make_own_plan(const RunProblem& problem, int multiprocessors);
Arguments make_arguments(const RunProblem& problem, std::int64_t most_packed);

// The most that any plan within the bounds needs.
std::size_t workspace_bound(const RunBounds& bounds, int multiprocessors);

}  // namespace hyla::attention::decode
