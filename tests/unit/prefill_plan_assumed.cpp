// The cost model of chunked prefill where the host knows the longest sequence alone, and what it
// counts of last chunks and bytes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "ops/gdn_prefill/plan.h"

namespace hyla::gdn {
namespace {

TEST(PrefillPlanAssumed, LengthsFallFromTheLongestAndKeepTheirTokens) {
  for (const std::int64_t rows : {2, 3, 7, 40, 512}) {
    for (const double ratio : {1.1, 1.8, 4.0}) {
      const double longest = 9000, all = longest * static_cast<double>(rows) / ratio;
      if (all < longest + static_cast<double>(rows)) continue;
      const AssumedLengths lengths(rows, all, longest);
      EXPECT_EQ(lengths.of(0), longest);
      double sum = 0;
      for (std::int64_t rank = 0; rank < rows; ++rank) {
        if (rank > 0) {
          EXPECT_LE(lengths.of(rank), lengths.of(rank - 1));
        }
        EXPECT_GT(lengths.of(rank), 0);
        sum += lengths.of(rank);
      }
      EXPECT_NEAR(sum / all, 1.0, 0.05) << rows << " rows, the longest " << ratio << " of the mean";
    }
  }
}

TEST(PrefillPlanAssumed, EveryRankHasAPlaceInTheOrder) {
  for (std::int64_t rows = 1; rows <= 130; ++rows) {
    const AssumedLengths lengths(rows, 1000, 500);
    std::set<std::int64_t> ranks;
    for (std::int64_t row = 0; row < rows; ++row) ranks.insert(lengths.rank_in_order(row));
    EXPECT_EQ(std::ssize(ranks), rows);
    EXPECT_EQ(*ranks.begin(), 0);
    EXPECT_EQ(*ranks.rbegin(), rows - 1);
  }
}

// Nobody knows their order: what CTAs that start in it take is not asked for.
TEST(PrefillPlanAssumed, TheOrderIsNotKnown) {
  const PlanLengths some(1, 3, 300, [](std::int64_t row) { return 50 * (row + 1); });
  EXPECT_TRUE((ToldLengths{&some, 1}).in_order());
  EXPECT_TRUE((ToldLengths{&some, 1, true}).ranked());
  EXPECT_FALSE((ToldLengths{&some, 1, true}).in_order());
  EXPECT_FALSE((ToldLengths{&some, 1} == ToldLengths{&some, 1, true}));
}

TEST(PrefillPlanAssumed, LastChunksAreWholeOrNot) {
  const auto shape = [](std::int64_t rows, std::int64_t length) {
    PlanShape s{rows, 8, rows * length, 132};
    s.longest = length;
    return s;
  };
  EXPECT_EQ(shape(4, 128).torn(), 0.0);
  EXPECT_EQ(shape(4, 128).last_part(), 1.0);
  EXPECT_EQ(shape(4, 144).torn(), 1.0);
  EXPECT_EQ(shape(4, 144).last_part(), 0.25);
  const PlanLengths told(1, 4, 400,
                         [](std::int64_t row) { return 64 * row + (row == 3 ? 32 : 0); });
  EXPECT_EQ(told.torn(), 0.25);  // 0, 64, 128, 224 tokens
  EXPECT_EQ(told.last_part(), (2.0 + 0.5) / 4.0);
  // Other code for the end of every sequence is not expected to be free.
  EXPECT_GT(model_us(Plan::kFused, shape(16, 255)), model_us(Plan::kFused, shape(16, 256)));
}

TEST(PrefillPlanAssumed, BytesOfACallAreItsTensors) {
  PlanShape s{2, 3, 640, 132};
  s.key_loads = 256.0 * 128 + 1000;        // q and k of a chunk and a record of 1000 bytes
  s.key_bytes = 128.0 * 128 * 1.5 + 1000;  // of which heads share a part
  s.value_bytes = 256.0 * 128;
  const double tokens = 640.0 * 3 * (128 * 2 * 1.5 + 128 * 2 * 2), states = 6.0 * 128 * 128 * 8;
  EXPECT_DOUBLE_EQ(s.call_bytes(), tokens + states);
  EXPECT_EQ(s.beyond_cache(), 0.0);
  s.tokens = 1 << 20;
  EXPECT_EQ(s.beyond_cache(), 1.0);
}

}  // namespace
}  // namespace hyla::gdn
