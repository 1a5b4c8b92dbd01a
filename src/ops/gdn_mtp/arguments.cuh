// What the multi-token kernels receive, and which tokens and slots a row has.
#pragma once

#include "problem/gdn_mtp.h"

namespace hyla::gdn {

struct MtpArguments {
  MtpProblem p;
  std::int64_t total;  // ragged: tokens there are; lengths from the device are clamped to it
};

struct MtpRow {
  std::int64_t begin, length, commit;  // the final state is the one after `commit` tokens
  std::int64_t read, write;
};

// False: the row is padding.
__device__ __forceinline__ bool find_row(const MtpArguments& a, std::int64_t row, MtpRow& span) {
  const MtpProblem& p = a.p;
  span.read = p.slots.read_slot(row);
  if (span.read == core::kNullSlot) return false;
  span.begin = p.sequences.begin(row);
  span.length = p.sequences.length(row);
  if (p.sequences.ragged()) {
    span.begin = max(std::int64_t{0}, min(span.begin, a.total));
    span.length = max(std::int64_t{0}, min(span.length, a.total - span.begin));
  }
  span.commit = p.commit_lengths.present() ? p.commit_lengths.at(row) : span.length;
  span.commit = max(std::int64_t{0}, min(span.commit, span.length));
  span.write = p.update_state ? p.slots.write_slot(row) : core::kNullSlot;
  return true;
}

}  // namespace hyla::gdn
