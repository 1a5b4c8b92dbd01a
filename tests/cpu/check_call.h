// One call by every implementation that takes it, forced by name, against the float64 reference.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "testing/compare.h"

namespace hyla::cpu_test {

// Returns how many fast ones took it: what is rare may be the reference's alone, and explain says
// so.
inline int check_call(const std::string& what, const testing::Call& call) {
  const testing::Judge judge(call);
  int fast = 0;
  for (const Candidate& candidate : testing::explain(call)) {
    if (!candidate.supported) continue;
    testing::Call copy = call;
    testing::run(copy, candidate.implementation);
    const testing::Comparison comparison = judge.compare(copy);
    EXPECT_TRUE(comparison.ok) << what << " by " << candidate.implementation << ": "
                               << comparison.failure << " (" << comparison.tensor << " error "
                               << comparison.max_error << ", bound " << comparison.bound << ")";
    fast += candidate.implementation.starts_with("cpu_");
  }
  return fast;
}

}  // namespace hyla::cpu_test
