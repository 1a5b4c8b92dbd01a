// Every operation once more, written differently from the reference and sharing none of its code:
// it reads the public params, walks value rows instead of states, and takes its arithmetic as a
// parameter. In float64 it checks the reference; in float32 its error is the yardstick of compare.h.
#pragma once

#include "testing/call.h"

namespace hyla::testing {

struct NaiveOptions {
  bool float64 = false;  // float32 otherwise
  // Operands of matrix products are rounded to this dtype first, as tensor cores take them.
  DType operands = DType::kFloat32;
};

// Runs the call in place of an implementation. Arguments must be valid.
void run_naive(const Call& call, const NaiveOptions& options);

void naive_decode(const gdn::DecodeParams& params, const NaiveOptions& options);
void naive_mtp(const gdn::MtpParams& params, const NaiveOptions& options);
void naive_prefill(const gdn::PrefillParams& params, const NaiveOptions& options);
void naive_recurrence(const gdn::RecurrenceParams& params, const NaiveOptions& options);

}  // namespace hyla::testing
