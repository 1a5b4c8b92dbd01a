#include "testing/draw_problem.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "testing/random_problem.h"

namespace hyla::testing {
namespace {

constexpr std::uint64_t kNumbers = 400;

TEST(DrawProblem, EveryDrawIsAProblemAndReproducible) {
  for (const Operation operation : all_operations()) {
    std::set<std::string> different;
    for (std::uint64_t number = 0; number < kNumbers; ++number) {
      const ProblemSpec spec = draw_problem(operation, Device::Kind::kCpu, number);
      const std::string text = to_string(spec);
      EXPECT_EQ(parse_problem(text), spec) << text;
      EXPECT_EQ(draw_problem(operation, Device::Kind::kCpu, number), spec) << text;
      EXPECT_FALSE(spec.pdl) << text;
      different.insert(text);
    }
    EXPECT_GT(different.size(), kNumbers * 9 / 10) << name_of(operation);
  }
}

// Of attention with fewer keys than queries too, which append refuses.
TEST(DrawProblem, DrawsTheEdges) {
  int empty_rows = 0, no_batch = 0, early_queries = 0;
  for (const Operation operation : all_operations()) {
    for (std::uint64_t number = 0; number < kNumbers; ++number) {
      const ProblemSpec spec = draw_problem(operation, Device::Kind::kCuda, number);
      const std::vector<std::int64_t> rows = row_lengths(spec), keys = kv_lengths(spec);
      no_batch += rows.empty();
      for (std::size_t n = 0; n < rows.size(); ++n) {
        empty_rows += rows[n] == 0;
        early_queries += keys[n] < rows[n];
      }
    }
  }
  EXPECT_GT(empty_rows, 100);
  EXPECT_GT(no_batch, 10);
  EXPECT_GT(early_queries, 10);
}

}  // namespace
}  // namespace hyla::testing
