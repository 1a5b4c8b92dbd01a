#include "testing/prefill_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace hyla::testing {
namespace {

constexpr std::int64_t kShapes = 2000;

TEST(PrefillShapes, AreProblemsOfTheGrammarThatStaySmall) {
  for (std::int64_t i = 0; i < kShapes; ++i) {
    const ProblemSpec spec = random_prefill_shape(3, i);
    EXPECT_NO_THROW(check_problem(spec)) << to_string(spec);
    EXPECT_EQ(parse_problem(to_string(spec)), spec);
    const std::int64_t rows = std::ssize(spec.lens), heads = std::max(spec.hq, spec.hv);
    EXPECT_LE(rows, 64);
    EXPECT_LE(heads, 64);
    EXPECT_GE(*std::min_element(spec.lens.begin(), spec.lens.end()), 1);
    EXPECT_GE(total_tokens(spec), 16 - rows) << to_string(spec);
    EXPECT_LE(total_tokens(spec), 65536 + rows) << to_string(spec);
    // A gigabyte of q, k, v and out each at the most.
    EXPECT_LE(total_tokens(spec) * heads * spec.v, (std::int64_t{1} << 28) + rows * heads * spec.v);
  }
}

TEST(PrefillShapes, AnIndexNamesAShapeAndASeedOthers) {
  std::set<std::string> one, other;
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::string text = to_string(random_prefill_shape(1, i));
    EXPECT_EQ(to_string(random_prefill_shape(1, i)), text);
    one.insert(text);
    other.insert(to_string(random_prefill_shape(2, i)));
  }
  EXPECT_GT(one.size(), 195u);
  std::vector<std::string> both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                        std::back_inserter(both));
  EXPECT_LT(both.size(), 5u);
}

// Each of these changes which plan is best: a sweep without one of them would judge little.
TEST(PrefillShapes, EveryKindIsDrawn) {
  int one_row = 0, alike = 0, ragged = 0, unknown = 0, gqa = 0, small = 0, large = 0, bf16 = 0;
  for (std::int64_t i = 0; i < kShapes; ++i) {
    const ProblemSpec spec = random_prefill_shape(1, i);
    const bool equal = std::set<std::int64_t>(spec.lens.begin(), spec.lens.end()).size() == 1;
    one_row += spec.lens.size() == 1;
    alike += spec.lens.size() > 1 && equal;
    ragged += !equal;
    unknown += !spec.longest && !equal;
    gqa += spec.hq > spec.hv;
    small += spec.k == 64;
    large += spec.k == 256;
    bf16 += spec.state == DType::kBFloat16;
  }
  for (const int count : {one_row, alike, ragged, unknown, gqa, small, large, bf16}) {
    EXPECT_GT(count, kShapes / 20);
    EXPECT_LT(count, kShapes / 2);
  }
}

}  // namespace
}  // namespace hyla::testing
