#pragma once

#include "problem/gdn.h"

namespace hyla::gdn {

struct MtpProblem : Problem {
  bool update_state = false;  // the final state is written to slots.write_slot(row)
  // of row b, token t: states_out_row(b, t); `slots` counts the tokens of a row
  PoolView states_out;
  std::int64_t states_out_row_stride = 0;
  core::IndexView step_slots;      // [B, >=T]
  core::IndexView commit_lengths;  // [B]
};

MtpProblem validate(const MtpParams& params, const Context& context);

// Decode and recurrence are an MTP that writes its final state and nothing else.
inline MtpProblem as_mtp(const Problem& problem) {
  MtpProblem result;
  static_cast<Problem&>(result) = problem;
  result.update_state = true;
  return result;
}

}  // namespace hyla::gdn
