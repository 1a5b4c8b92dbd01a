// Which decode kernel a problem gets, and what it needs. On the host.
#pragma once

#include <hyla/attention.h>

#include "ops/attention_decode/arguments.h"
#include "problem/attention.h"

namespace hyla::attention::decode {

struct Plan {
  int dim = 0;        // D and DV padded to 64, 128 or 256
  int sharing = 1;    // warps of 8 query rows that read the same keys
  int heads = 1;      // KV heads that a CTA takes together
  bool wide = false;  // kernel_wide.cuh
  int ctas = 0;
  int slots = 2;          // for pieces of a CTA
  bool own_bits = false;  // a row's depend on nothing but the row
  int entries = 0;        // items, or CTAs, that may have pieces
  bool by_item = false;

  int rows() const { return wide ? kWideRows : heads * sharing * kWarpRows; }
};

inline constexpr std::int64_t kAllRows = INT32_MAX;

const char* refuses(const RunProblem& problem, const Context& context);
// `most_packed`: only rows with at most so many packed query rows (q_len * Hq / Hk) are computed.
Plan make_plan(const RunProblem& problem, std::int64_t most_packed, int multiprocessors);
// For rows of at most kWarpRows packed query rows, each with bits that are its own.
Plan make_own_plan(const RunProblem& problem, int multiprocessors);
Arguments make_arguments(const RunProblem& problem, std::int64_t most_packed);

// Of the pieces of a plan, and the most that any plan within the bounds needs.
std::size_t workspace_bytes(const Plan& plan);
std::size_t workspace_bound(const RunBounds& bounds, int multiprocessors);
void set_workspace(Arguments& arguments, const Plan& plan, void* memory);

}  // namespace hyla::attention::decode
