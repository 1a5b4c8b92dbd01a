// How well the cost model of gdn.prefill chooses: every plan that can take a problem is timed, and
// the chosen one compared with the fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hyla::tool {

struct PlanOptions {
  std::vector<std::string> problems;  // empty: random shapes
  std::uint64_t seed = 1;             // of the random shapes
  std::string shapes = "0:200";       // which of them, FIRST:COUNT
  // Does the caller know the longest length of several sequences: drawn, known, device; or all
  // lengths: host.
  std::string lengths = "drawn";
  // Not 0: of these shapes those alone where another plan or form is expected to take up to so many
  // times as long as the chosen one, since there the choice may go wrong.
  double near = 0;
  std::string json;
};

int bench_plans(const PlanOptions& options);

}  // namespace hyla::tool
