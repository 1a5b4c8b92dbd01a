// Host side of the prefill kernel (kernel_tile.cuh) over the built-in caches, for the tables and
// for calls that mix prefill and decode rows.
#pragma once

#include <hyla/workspace.h>

#include <cstddef>

#include "problem/attention.h"

namespace hyla::attention {

// Null when the kernel takes the problem, whatever lengths its rows have, otherwise why not.
const char* attention_prefill_refuses(const RunProblem& problem, const Context& context);

// The most that a row of the cache has room for.
std::int64_t most_keys(const CacheView& cache);

// What a call needs at least.
std::size_t attention_prefill_workspace_bytes(std::int64_t rows);
// With room for the pieces of items that are cut along the keys: calls with few queries behind many
// keys are faster with it.
std::size_t attention_prefill_workspace_bound(const RunBounds& bounds, int processors);

// Null where keys and values of some rows can be widened in the workspace before, if it has room.
const char* widening_refuses(const RunProblem& problem, const Context& context);

// Computes the rows n with q_len[n] * Hq / Hk > `more_than` and does not touch the others. Lengths
// are read on the device only. `widens`: what widening_refuses allows.
void launch_attention_prefill(const RunProblem& problem, std::int64_t more_than, bool widens,
                              const Workspace& workspace, const Context& context);

}  // namespace hyla::attention
