// Chunked prefill: the tokens of a sequence in chunks, each of them a handful of matrix products.
#pragma once

#include <atomic>

#include "cpu/target.h"
#include "problem/gdn_prefill.h"

namespace hyla::cpu {

// 32 tokens: the products with the state are most of the work then, and what grows with the chunk
// (the triangles) and what shrinks (the passes over the state) are about equal.
inline constexpr std::int64_t kChunk = 32;

// A task is a part of the value dimension of some heads of one sequence. The heads of a task share
// their query and key head, and with it the products of queries and keys.
struct PrefillPlan {
  std::int64_t group = 1;     // heads with the same query and key head
  std::int64_t together = 1;  // of them in one task, the last task may have fewer
  std::int64_t parts = 1;     // of the value dimension
  std::int64_t tasks = 0;
  std::int64_t scratch = 0;   // floats a worker needs
  bool leaves_short = false;  // rows to run_rows

  std::int64_t slices() const { return (group + together - 1) / together; }  // of a group
};

struct PrefillKernels {
  // Takes tasks from `next` until none is left.
  void (*run)(const gdn::PrefillProblem& p, const PrefillPlan& plan,
              std::atomic<std::int64_t>& next, float* scratch);
};
const PrefillKernels& prefill_kernels(Target target);

}  // namespace hyla::cpu
