// Which scales and soft caps are factors in float32 of what a kernel sums.
#pragma once

#include <hyla/attention_queries.h>

namespace hyla::attention {

// Logits near it are numbers in float32, with room for what is summed.
inline constexpr double kMostCap = 0x1p100;

// Kernels that keep the largest product of a row, and not its largest logit, multiply -inf with the
// scale where a row has seen no key: one that became 0 would make that NaN. A quotient of scale and
// cap that became 0 would say that there is no cap.
inline bool has_factors(const Queries& queries) {
  constexpr double kLeast = 1 / kMostCap;
  return queries.scale >= kLeast && queries.scale >= queries.softcap * kLeast &&
         queries.softcap <= kMostCap;
}
// Kernels that make tanh of an exponential alone, right to 2^-22 of the cap, leave larger caps to
// others: logits far below would lose their digits.
inline constexpr double kLargeCap = 256;
inline constexpr const char* kNeedsFactors =
    "takes a scale from 2^-100 on, at most 2^100 below the soft cap, and that up to 2^100";

}  // namespace hyla::attention
