// A call on the CPU, its limit and a related call, timed in turn.
#pragma once

#include <optional>
#include <string>

#include "testing/call.h"
#include "testing/problem_string.h"

namespace hyla::tool {

// The call that another one's time is judged by: a state of fewer bits by float32, drafts by one
// token, tiny numbers by ordinary ones.
struct Beside {
  std::string name;  // "f32"
  testing::ProblemSpec spec;
};
std::optional<Beside> beside(const testing::ProblemSpec& spec, bool tiny);

struct CpuTimes {
  double us = 0, best_us = 0, limit_us = 0;  // medians over all turns; the best turn
  double ratio = 0;                          // to the limit of the same turn, the median
  double beside_us = 0, beside_ratio = 0;    // 0: there is none
};

// `other`: null, or what is measured beside it.
CpuTimes cpu_times(const testing::ProblemSpec& spec, const testing::Call& call,
                   const std::string& impl, const testing::Call* other, double seconds);

}  // namespace hyla::tool
