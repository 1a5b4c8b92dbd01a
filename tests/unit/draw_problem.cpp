#include "testing/draw_problem.h"

#include <gtest/gtest.h>
#include <hyla/error.h>

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

TEST(DrawProblem, GivenKeysStay) {
  int together = 0;
  for (std::uint64_t number = 0; number < kNumbers; ++number) {
    const auto spec = draw_problem("gdn_mtp:k=128,v=128,layout=kv,state=bf16", number);
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->k, 128);
    EXPECT_EQ(spec->v, 128);
    EXPECT_EQ(spec->layout, gdn::StateLayout::kKV);
    EXPECT_EQ(spec->state, DType::kBFloat16);
    const auto rows = draw_problem("attention_decode:b=3,t=2", number);
    ASSERT_TRUE(rows.has_value());
    EXPECT_EQ(row_lengths(*rows), (std::vector<std::int64_t>{2, 2, 2}));
    // Two heads do not go with every number of query heads.
    together += draw_problem("attention_decode:hk=2", number).has_value();
  }
  EXPECT_GT(together, 50);
  EXPECT_LT(together, static_cast<int>(kNumbers));
  EXPECT_THROW(draw_problem("gdn_decode:k=3", 1), InvalidArgument);
}

// Of attention with fewer keys than queries too, which append refuses.
TEST(DrawProblem, DrawsTheEdges) {
  int empty_rows = 0, no_batch = 0, early_queries = 0, latent = 0;
  for (const Operation operation : all_operations()) {
    for (std::uint64_t number = 0; number < kNumbers; ++number) {
      const ProblemSpec spec = draw_problem(operation, Device::Kind::kCuda, number);
      const std::vector<std::int64_t> rows = row_lengths(spec), keys = kv_lengths(spec);
      no_batch += rows.empty();
      latent += spec.d == kMlaDim && spec.dv == kMlaValueDim;
      for (std::size_t n = 0; n < rows.size(); ++n) {
        empty_rows += rows[n] == 0;
        early_queries += keys[n] < rows[n];
      }
    }
  }
  EXPECT_GT(empty_rows, 100);
  EXPECT_GT(no_batch, 10);
  EXPECT_GT(early_queries, 10);
  EXPECT_GT(latent, 20);
}

}  // namespace
}  // namespace hyla::testing
