// The cost model of chunked prefill: what it proposes can be run, and more work never takes less.
#include "ops/gdn_prefill/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing/random.h"

namespace hyla::gdn {
namespace {

PlanShape shape(std::int64_t rows, std::int64_t heads, std::int64_t length) {
  PlanShape s{rows, heads, rows * length, 132};
  s.key_bytes = s.value_bytes = 33e3;
  return s;
}

PlanShape random_shape(std::int64_t i) {
  const testing::Random draw(5, "plans");
  return shape(1 + draw.below(3 * i, 9), std::int64_t{1} << draw.below(3 * i + 1, 7),
               1 + draw.below(3 * i + 2, 100000));
}

TEST(PrefillPlan, SegmentsFitTheirMemoryAndTheirSequence) {
  int found = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const PlanShape s = random_shape(i);
    const Walks walks = segment_walks(s);
    if (walks.parts == 0) continue;
    ++found;
    EXPECT_GE(walks.parts, 3);   // two would need no M, and are what cuda_split does
    EXPECT_LE(walks.parts, 64);  // one bit a segment in kernel_states.cuh
    EXPECT_LE(walks.parts, s.chunks());
    EXPECT_LE(s.tasks() * (walks.parts - 1), kMostSegmentStates);
    EXPECT_GT(walks.us, 0);
  }
  EXPECT_GT(found, 100);
}

TEST(PrefillPlan, ALongerSequenceIsNotExpectedToBeFaster) {
  for (std::int64_t heads : {1, 8, 32, 64}) {
    double fused = 0, split = 0, block = 0;
    for (std::int64_t length = 1; length < 200000; length = length * 3 / 2 + 1) {
      const PlanShape s = shape(1, heads, length);
      EXPECT_GE(fused_us(s), fused);
      EXPECT_GE(split_walks(s).us, 0.79 * split);  // two parts are shorter than one
      EXPECT_GE(block_us(s), block);
      fused = fused_us(s), split = split_walks(s).us, block = block_us(s);
    }
  }
}

TEST(PrefillPlan, EveryExpectationIsANumber) {
  const testing::Random draw(6, "any plans");
  for (std::int64_t i = 0; i < 2000; ++i) {
    const auto below = [&](int n, std::int64_t limit) { return draw.below(8 * i + n, limit); };
    PlanShape s = shape(below(0, 70), 1 + below(1, 70), below(2, 3) * below(3, 9000));
    s.longest = below(4, 2) * below(5, 100000);  // it may be wrong
    s.key_dim = 64 << below(6, 3);
    s.norm = s.narrow_states = below(7, 2) == 1;
    for (const double us : {fused_us(s), split_walks(s).us, steps_us(s), block_us(s), vk_us(s)}) {
      EXPECT_TRUE(std::isfinite(us) && us > 0) << us;
    }
    EXPECT_LE(s.all_chunks(), static_cast<double>(s.rows) * s.chunks());
    EXPECT_GE(s.all_chunks() * 64, static_cast<double>(s.tokens));
  }
}

// One sequence of twice the length among as many tokens in all: nobody ends earlier.
TEST(PrefillPlan, ALongerSequenceAmongOthersIsNotExpectedToBeFaster) {
  for (std::int64_t heads : {1, 4, 16}) {
    for (std::int64_t length : {100, 1000, 5000}) {
      const PlanShape alike = shape(8, heads, length);
      PlanShape ragged = alike;
      ragged.longest = 2 * length;
      EXPECT_GT(fused_us(ragged), fused_us(alike));
      EXPECT_GT(split_walks(ragged).us, split_walks(alike).us);
      EXPECT_GT(steps_us(ragged), steps_us(alike));
      EXPECT_GT(block_us(ragged), block_us(alike));
      EXPECT_GT(vk_us(ragged), vk_us(alike));
    }
  }
}

// Shorter than the mean, or longer than all tokens: the nearest that can be.
TEST(PrefillPlan, ALengthThatCannotBeIsNotBelieved) {
  PlanShape none = shape(4, 8, 1000), small = none, all = none, large = none;
  small.longest = 10, all.longest = 4000, large.longest = 1 << 30;
  EXPECT_EQ(split_walks(none).us, split_walks(small).us);
  EXPECT_EQ(split_walks(all).us, split_walks(large).us);
  EXPECT_EQ(steps_us(none), steps_us(small));
  EXPECT_EQ(steps_us(all), steps_us(large));
}

TEST(PrefillPlan, FewLongSequencesAreCutAndManyAreNot) {
  const PlanShape one = shape(1, 8, 131072), many = shape(64, 32, 256), tiny = shape(64, 32, 16);
  EXPECT_LT(segment_walks(one).us, 0.5 * split_walks(one).us);
  EXPECT_LT(split_walks(one).us, 0.5 * fused_us(one));
  EXPECT_LT(fused_us(many), block_us(many));
  EXPECT_LT(block_us(tiny), fused_us(tiny));
  EXPECT_LT(steps_us(tiny), fused_us(tiny));
  EXPECT_LT(fused_us(many), steps_us(many));
}

LongPlan mixed(std::int64_t heads, int others, int other_chunks, int longest) {
  LongPlan plan;
  const int chunks = longest + others * other_chunks;
  EXPECT_GT(long_rows(plan, others + 1, heads, std::int64_t{64} * chunks,
                      std::int64_t{64} * longest, 132),
            0);
  plan.rows = others + 1, plan.chunks = chunks, plan.longest = longest;
  return plan;
}

TEST(PrefillPlan, ALongSequenceAmongShortOnesIsTakenOut) {
  for (std::int64_t heads : {2, 8, 32}) {
    const LongPlan plan = mixed(heads, 64, 1, 256);
    EXPECT_LT(plan.most(), 256);
    EXPECT_GE(plan.most(), 1);
    EXPECT_TRUE(plan.pays(1, 256)) << heads;
  }
}

TEST(PrefillPlan, LongSequencesLeaveMultiprocessorsForTheOthers) {
  for (std::int64_t heads = 1; heads <= 200; ++heads) {
    LongPlan plan;
    const int rows = long_rows(plan, 1000, heads, 1 << 24, 1 << 23, 132);
    EXPECT_LE(rows, kMostLongRows);
    if (rows == 0) continue;
    EXPECT_LT(rows * plan.ctas_a_row(), 132) << heads;
    EXPECT_FALSE(plan.pays(132 / plan.ctas_a_row() + 1, 1));
  }
}

// One sequence, or so few tokens that the longest possible is not worth a kernel.
TEST(PrefillPlan, WhereNoSequenceCanBeLongNobodyLooks) {
  LongPlan plan;
  for (std::int64_t longest : {0, 1024}) {
    EXPECT_EQ(long_rows(plan, 1, 32, 1 << 20, longest, 132), 0);
    EXPECT_EQ(long_rows(plan, 64, 32, 1024, longest, 132), 0);
  }
}

// Alike, as the host knows: 4 of 8192 tokens, 64 of 256.
TEST(PrefillPlan, WhereAllSequencesAreAlikeNobodyLooks) {
  for (std::int64_t heads : {8, 32, 64}) {
    LongPlan plan;
    EXPECT_EQ(long_rows(plan, 64, heads, 64 * 256, 256, 132), 0) << heads;
    EXPECT_EQ(long_rows(plan, 20, heads, 20 * 8192, 8192, 132), 0) << heads;
  }
}

// Nobody said how long the longest is: looked for only where it might cost most.
TEST(PrefillPlan, AnUnknownLengthIsLookedForWithFewHeads) {
  LongPlan plan;
  EXPECT_GT(long_rows(plan, 64, 4, 1 << 16, 0, 132), 0);
  EXPECT_EQ(long_rows(plan, 64, 64, 1 << 16, 0, 132), 0);
}

}  // namespace
}  // namespace hyla::gdn
