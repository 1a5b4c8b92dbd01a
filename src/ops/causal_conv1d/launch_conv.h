// Host side of the convolution kernels, for the tables of conv.prefill and conv.update.
#pragma once

#include <hyla/workspace.h>

#include "problem/conv.h"

namespace hyla::conv {

// kernel_step.cuh: an update of one token a row.
const char* step_refuses(const UpdateProblem& problem, const Context& context);
void launch_step(const UpdateProblem& problem, const Workspace&, const Context& context);

// kernel_drafts.cuh: an update of a few tokens a row.
const char* drafts_refuses(const UpdateProblem& problem, const Context& context);
void launch_drafts(const UpdateProblem& problem, const Workspace&, const Context& context);

// kernel_runs.cuh: everything whose output has memory of its own.
const char* runs_refuses(const Problem& problem, const Context& context);
void launch_runs(const PrefillProblem& problem, const Workspace&, const Context& context);
void launch_runs(const UpdateProblem& problem, const Workspace&, const Context& context);

// kernel_rows.cuh: everything, also in place.
const char* rows_refuses(const Problem& problem, const Context& context);
void launch_rows(const PrefillProblem& problem, const Workspace&, const Context& context);
void launch_rows(const UpdateProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::conv
