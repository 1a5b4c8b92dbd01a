// The cost model of chunked prefill where the host was told all lengths.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/gdn_prefill/plan.h"
#include "testing/random.h"

namespace hyla::gdn {
namespace {

using Numbers = std::vector<std::int64_t>;

PlanLengths lengths_of(const Numbers& lengths, std::int64_t tokens, std::uint64_t key = 1) {
  return PlanLengths(key, std::ssize(lengths), tokens,
                     [&](std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; });
}

PlanShape shape(const Numbers& lengths, std::int64_t heads, const PlanLengths* told,
                std::uint64_t key = 1) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  PlanShape s{std::ssize(lengths), heads, tokens, 132};
  s.key_bytes = s.value_bytes = 33e3;
  s.longest = *std::max_element(lengths.begin(), lengths.end());
  if (told != nullptr) s.lengths = {told, key};
  return s;
}

std::int64_t sum(const Numbers& n) { return std::accumulate(n.begin(), n.end(), std::int64_t{0}); }

TEST(PrefillPlanTold, PiecesAreThoseOfTheSequences) {
  const Numbers lengths = {1, 0, 64, 65, 130, 16, 9};
  const PlanLengths told = lengths_of(lengths, sum(lengths));
  const PlanShape s = shape(lengths, 4, &told);
  for (const std::int64_t size : {1, 8, 16, 64}) {
    double pieces = 0;
    for (const std::int64_t n : lengths) pieces += static_cast<double>((n + size - 1) / size);
    EXPECT_EQ(s.pieces(size), pieces) << size;
  }
  EXPECT_EQ(s.length(), 130);
  EXPECT_EQ(told.chunks(0), 3);
  EXPECT_EQ(told.chunks(6), 0);
  EXPECT_EQ(told.chunks(7), 0);
}

// All alike: there is nothing that the longest would not have said.
TEST(PrefillPlanTold, AlikeSequencesAreAsKnown) {
  for (const std::int64_t length : {3, 64, 700, 5000}) {
    for (const std::int64_t rows : {1, 7, 40}) {
      const Numbers lengths(static_cast<std::size_t>(rows), length);
      const PlanLengths all = lengths_of(lengths, rows * length);
      const PlanShape told = shape(lengths, 8, &all), known = shape(lengths, 8, nullptr);
      // Nobody has to look for a long one.
      EXPECT_LE(model_us(Plan::kFused, told), model_us(Plan::kFused, known));
      EXPECT_EQ(split_walks(told).us, split_walks(known).us);
      EXPECT_EQ(segment_walks(told).us, segment_walks(known).us);
      EXPECT_EQ(steps_us(told), steps_us(known));
      EXPECT_EQ(block_us(told), block_us(known));
    }
  }
}

// More than the tokens of the call, or nothing at all: what is expected stays a number.
TEST(PrefillPlanTold, LengthsThatCannotBeAreANumber) {
  const testing::Random draw(9, "told plans");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t i = 0; i < 400; ++i) {
    const auto below = [&](std::int64_t n, std::int64_t most) {
      return draw.below(1024 * i + n, most);
    };
    Numbers lengths, said;
    const std::int64_t rows = below(0, 5) == 0 ? 600 : 1 + below(1, 70);
    for (std::int64_t row = 0; row < rows; ++row) {
      lengths.push_back(below(8 + row, below(2, 2) == 0 ? 30 : 5000));
      said.push_back(i % 4 == 0   ? 0
                     : i % 4 == 1 ? kMost
                     : i % 4 == 2 ? lengths.back() / 3
                                  : below(4000 + row, 100000));
    }
    const auto key = static_cast<std::uint64_t>(i);
    const PlanLengths told = lengths_of(said, sum(lengths), key);
    PlanShape s = shape(lengths, 1 + below(3, 64), &told, key);
    s.longest = std::max<std::int64_t>(
        1, std::min(sum(lengths), *std::max_element(said.begin(), said.end())));
    s.key_dim = 64 << below(4, 3);
    for (const double us : {fused_us(s), split_walks(s).us, steps_us(s), block_us(s), vk_us(s)}) {
      EXPECT_TRUE(std::isfinite(us) && us > 0) << us;
    }
    for (const Walks& walks : {segment_walks(s), relay_walks(s)}) {
      EXPECT_TRUE(walks.parts == 0 || (std::isfinite(walks.us) && walks.us > 0));
    }
  }
}

TEST(PrefillPlanTold, TasksAreDealtOutFromAlternatingEnds) {
  const Numbers lengths = {64, 192, 128, 64, 256};  // ranked: 4, 3, 2, 1, 1 chunks
  const PlanLengths told = lengths_of(lengths, sum(lengths));
  PlanShape s = shape(lengths, 1, &told);
  EXPECT_EQ(s.dealt_out(1, 0, 2), 6);  // 4, 1, 1; 3, 2
  EXPECT_EQ(s.dealt_out(0, 1, 2), 3);
  EXPECT_EQ(s.dealt_out(1, 0, 3), 4);  // 4; 3, 1; 2, 1
  EXPECT_EQ(s.dealt_out(1, 10, 132), 14);
  EXPECT_EQ(s.dealt_out(1, 0, 2, 2), 2);  // 2; 1, 1: the first two are others' work
}

TEST(PrefillPlanTold, CtasStartWhereOneEnds) {
  const Numbers lengths = {64, 192, 128, 64, 256};
  const PlanLengths told = lengths_of(lengths, sum(lengths));
  PlanShape s = shape(lengths, 1, &told);
  const auto one = [](double) { return 1.0; };
  const auto busy = [](double ctas) { return ctas; };
  s.multiprocessors = 2;  // in order 1, 2, 4; 3, 1, by rank 4, 1, 1; 3, 2
  EXPECT_EQ(s.walked_us(5, false, one), 7);
  EXPECT_EQ(s.walked_us(5, true, one), 6);
  // Two at work up to the fourth or fifth chunk, one after it.
  EXPECT_EQ(s.walked_us(5, false, busy), 2 * 4 + 3);
  EXPECT_EQ(s.walked_us(5, true, busy), 2 * 5 + 1);
  // Two CTAs a sequence: in order 1, 2, 4, 2, 4 and 3, 1, 1, 3, 1, by rank 11 each.
  EXPECT_EQ(s.walked_us(10, false, one), 13);
  EXPECT_EQ(s.walked_us(10, true, one), 11);
  s.multiprocessors = 8;  // all at once: 5, 3, 2 and one at work
  EXPECT_EQ(s.walked_us(5, false, busy), 5 + 3 + 2 + 1);
  EXPECT_EQ(s.walked_us(5, true, busy), 5 + 3 + 2 + 1);
}

// Looking for the longest pays where walks are long and few.
TEST(PrefillPlanTold, FewLongWalksStartWithTheLongest) {
  const Numbers lengths = {64, 5000, 640};
  const PlanLengths told = lengths_of(lengths, sum(lengths));
  PlanShape s = shape(lengths, 16, &told);
  EXPECT_TRUE(s.starts_by_rank(200));
  EXPECT_FALSE(s.starts_by_rank(132));   // all start at once
  EXPECT_FALSE(s.starts_by_rank(1000));  // many waves fill the gaps by themselves
  const Numbers brief = {64, 600, 64}, alike = {5000, 5000, 5000};
  const PlanLengths all_brief = lengths_of(brief, sum(brief), 2);
  PlanShape b = shape(brief, 16, &all_brief, 2);
  EXPECT_FALSE(b.starts_by_rank(200));
  b.key_dim = 256;  // whose chunks take longer
  EXPECT_TRUE(b.starts_by_rank(200));
  EXPECT_FALSE(shape(alike, 16, nullptr).starts_by_rank(200));
}

// Steps of CTAs beside each other, each taking a microsecond for every one at work.
TEST(PrefillPlanTold, CtasBesideEachOtherShareAMultiprocessor) {
  const Numbers lengths = {16, 48, 32};
  const PlanLengths told = lengths_of(lengths, sum(lengths));
  PlanShape s = shape(lengths, 1, &told);
  s.blocks = 1;
  const auto cta = [](double at_once, double steps) { return at_once * steps; };
  const auto steps = [&](int row) { return told.steps_in_order(row); };
  s.multiprocessors = 2;  // 1 and 2 steps; 3
  EXPECT_EQ(steps_at_once_us(s, 3, cta, steps), 3);
  s.multiprocessors = 1;  // 1, 2 and 3: three at once, two, one
  EXPECT_EQ(steps_at_once_us(s, 3, cta, steps), 6);
}

// What is kept of the last answer is of these lengths.
TEST(PrefillPlanTold, OtherLengthsAreAnotherQuestion) {
  const Numbers one = {5000, 100, 100, 100}, even = {1325, 1325, 1325, 1325};
  const PlanLengths first = lengths_of(one, sum(one), 11), second = lengths_of(even, sum(even), 12);
  const PlanShape a = shape(one, 32, &first, 11);
  PlanShape b = shape(one, 32, &second, 12);
  EXPECT_FALSE(a == b);
  EXPECT_NE(steps_us(a), steps_us(b));
  EXPECT_EQ(steps_us(a), expected_us(Plan::kSteps, a));
  EXPECT_TRUE(first.is_of(11, 4, 5300));
  EXPECT_FALSE(first.is_of(12, 4, 5300));
  EXPECT_FALSE(first.is_of(11, 5, 5300));
  EXPECT_FALSE(first.is_of(11, 4, 5301));
}

// A look for long sequences where the host knows that none pays would be for nothing.
TEST(PrefillPlanTold, LongSequencesAreWeighedAsTheDeviceDoes) {
  LongPlan plan;
  const Numbers alike(20, 2000);
  Numbers one(20, 64);
  one[3] = 30000;
  for (const Numbers& lengths : {alike, one}) {
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const int most = long_rows(plan, 20, 8, sum(lengths), longest, 132);
    const PlanLengths told = lengths_of(lengths, sum(lengths));
    EXPECT_EQ(most > 0, lengths == one);
    if (most > 0) {
      EXPECT_EQ(long_choice(plan, most, told).count, 1);
    }
    EXPECT_EQ(long_choice(plan, most, lengths_of(alike, sum(alike))).count, 0);
  }
}

}  // namespace
}  // namespace hyla::gdn
