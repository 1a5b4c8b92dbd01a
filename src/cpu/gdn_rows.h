// Rows of tokens, one token after another, over states that stay where they are: decode, MTP and
// recurrence.
#pragma once

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/gdn_mtp.h"

namespace hyla::cpu {

// A unit of work is a part of the value dimension of one head of one row. Value rows of a state do
// not depend on each other, so the bits of a result do not depend on the parts.
struct RowsPlan {
  std::int64_t parts = 1;  // of a head
  std::int64_t units = 0;  // rows * heads * parts
  bool stream = false;     // states of all tokens go past the caches
  bool far = false;        // the states do not fit the caches: all that is read comes from memory
};

struct RowsKernels {
  // `scratch`: K * V floats, needed by rows of more than kTokenBlock tokens.
  void (*run)(const gdn::MtpProblem& p, const RowsPlan& plan, Range units, float* scratch);
};
const RowsKernels& rows_kernels(Target target);

inline constexpr std::int64_t kTokenBlock = 8;  // prepared at a time, on the stack
inline constexpr std::int64_t kPartWidth = 8;   // of the value dimension
inline constexpr std::int64_t kMaxDim = 256;

}  // namespace hyla::cpu
