// The cost model of chunked prefill: what it proposes can be run, and more work never takes less.
#include "ops/gdn_prefill/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

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

// What is taken is one of the forms that can be run, each of which is listed once, and the cheapest
// of those that the model does not have far behind.
TEST(PrefillPlan, TheCheapestFormIsTaken) {
  int beside = 0;
  const auto check = [&](Plan plan, const PlanShape& s, const Walks& taken) {
    std::vector<Walks> forms;
    each_form(plan, s, [&](const Walks& form) {
      for (const Walks& before : forms) EXPECT_FALSE(form.same_form(before));
      forms.push_back(form);
      if (model_us(plan, s, form) < 1.2 * model_us(plan, s, taken)) {
        EXPECT_GE(expected_us(plan, s, form), taken.us);
      }
      if (form.beside) {
        EXPECT_LT(split_ctas(s, form), s.multiprocessors);
      }
    });
    const auto same = [&](const Walks& form) { return form.same_form(taken); };
    EXPECT_EQ(std::count_if(forms.begin(), forms.end(), same), taken.parts > 0 ? 1 : 0);
    beside += taken.beside ? 1 : 0;
  };
  for (std::int64_t i = 0; i < 500; ++i) {
    const PlanShape s = random_shape(i);
    check(Plan::kSplit, s, split_walks(s));
    check(Plan::kSegments, s, segment_walks(s));
    check(Plan::kRelay, s, relay_walks(s));
  }
  EXPECT_GT(beside, 20);
}

TEST(PrefillPlan, ALongerSequenceIsNotExpectedToBeFaster) {
  for (const Plan plan : {Plan::kFused, Plan::kSplit, Plan::kSteps, Plan::kBlock, Plan::kVk}) {
    for (std::int64_t heads : {1, 8, 32, 64}) {
      double by_model = 0, expected = 0;
      for (std::int64_t length = 1; length < 200000; length = length * 3 / 2 + 1) {
        const PlanShape s = shape(1, heads, length);
        EXPECT_GE(model_us(plan, s), by_model) << kPlanNames[static_cast<int>(plan)];
        EXPECT_GE(expected_us(plan, s), 0.8 * expected) << kPlanNames[static_cast<int>(plan)];
        by_model = model_us(plan, s), expected = expected_us(plan, s);
      }
    }
  }
}

// Parts keep their order (start_order.cuh), which costs a little and takes no plan away.
TEST(PrefillPlan, StatesInPlaceHaveTheirParts) {
  for (const std::int64_t key_dim : {128, 256}) {
    PlanShape s = shape(1, 8, 1500);
    s.key_dim = key_dim;
    const Walks elsewhere = split_walks(s);
    ASSERT_EQ(elsewhere.parts, 2) << key_dim;
    const double us = model_us(Plan::kSplit, s, elsewhere);
    s.in_place = true;
    EXPECT_EQ(split_walks(s).parts, 2) << key_dim;
    EXPECT_GT(model_us(Plan::kSplit, s, elsewhere), us) << key_dim;
    EXPECT_LT(model_us(Plan::kSplit, s, elsewhere), us + 3) << key_dim;
  }
}

// One after another from alternating ends: the third walk goes to the CTA of the second.
TEST(PrefillPlan, WalksAreDealtOutFromAlternatingEnds) {
  std::vector<Alike> walks{{3, 1}, {10, 1}, {0, 5}, {7, 1}, {1, 1}};
  EXPECT_DOUBLE_EQ(dealt_out_us(walks, 2.0, 0.0, 2), 2.0 * (10 + 1));
  EXPECT_DOUBLE_EQ(dealt_out_us(walks, 2.0, 5.0, 2), 2.0 * (10 + 1) + 2 * 5.0);
  EXPECT_DOUBLE_EQ(dealt_out_us(walks, 2.0, 5.0, 100), 2.0 * 10 + 5.0);
}

// As the sum of all parts is, whatever the lengths.
TEST(PrefillPlan, WorkOfTheRelayIsThatOfItsSequences) {
  const std::vector<std::int64_t> lengths{9000, 64, 30000, 0, 12345};
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const PlanLengths told(1, std::ssize(lengths), tokens,
                         [&](std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; });
  PlanShape s = shape(std::ssize(lengths), 8, 1);
  s.tokens = tokens, s.longest = 30000, s.lengths = {&told, 1};
  for (const int parts : {2, 5, 8}) {
    for (const int cuts : {1, 3}) {
      double outputs = 0;
      for (const Alike& alike : relay_work(s, parts, cuts).outputs) {
        outputs += alike.chunks * static_cast<double>(alike.count);
      }
      // Parts of a short sequence are counted as one chunk each.
      EXPECT_GE(outputs, told.pieces(64) * 8);
      EXPECT_LE(outputs, (told.pieces(64) + static_cast<double>(parts * cuts)) * 8);
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
      PlanShape alike = shape(8, heads, length), ragged = alike;
      alike.longest = length, ragged.longest = 2 * length;
      for (const Plan plan : {Plan::kFused, Plan::kSplit, Plan::kSteps, Plan::kBlock, Plan::kVk}) {
        // Of more tokens cuda_fused may take the longest out.
        if (plan == Plan::kFused && length > 100) continue;
        EXPECT_GT(model_us(plan, ragged), model_us(plan, alike));
      }
    }
  }
}

// Shorter than the mean, or longer than all tokens: the nearest that can be.
TEST(PrefillPlan, ALengthThatCannotBeIsNotBelieved) {
  PlanShape mean = shape(4, 8, 1000), small = mean, all = mean, large = mean;
  mean.longest = 1000, small.longest = 10, all.longest = 4000, large.longest = 1 << 30;
  EXPECT_EQ(split_walks(mean).us, split_walks(small).us);
  EXPECT_EQ(split_walks(all).us, split_walks(large).us);
  EXPECT_EQ(steps_us(mean), steps_us(small));
  EXPECT_EQ(steps_us(all), steps_us(large));
}

// Lengths that nobody told: not as good as alike ones, not as bad as one sequence with all tokens.
TEST(PrefillPlan, AnUnknownLengthIsBetweenTheBestAndTheWorst) {
  for (std::int64_t heads : {1, 4, 16}) {
    for (std::int64_t length : {20, 300, 5000}) {
      const PlanShape unknown = shape(8, heads, length);
      PlanShape alike = unknown, one = unknown;
      alike.longest = length, one.longest = 8 * length;
      for (const Plan plan : {Plan::kSplit, Plan::kSteps, Plan::kBlock, Plan::kVk}) {
        EXPECT_GE(model_us(plan, unknown), model_us(plan, alike));
        EXPECT_LE(model_us(plan, unknown), model_us(plan, one));
      }
    }
  }
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

// Chunks of the sequences, the longest first: how many are taken out.
int taken_out(std::int64_t heads, const std::vector<int>& lengths) {
  LongPlan plan;
  const auto rows = static_cast<int>(lengths.size());
  const int chunks = std::accumulate(lengths.begin(), lengths.end(), 0);
  const int most = long_rows(plan, rows, heads, std::int64_t{64} * chunks,
                             std::int64_t{64} * lengths.front(), 132);
  int best = 0, prepared = 0;
  const std::int64_t none = plan.cost(0, 0, lengths.front(), 0, 1);
  std::int64_t least = none;
  for (int count = 1; count <= most; ++count) {
    prepared += lengths[static_cast<std::size_t>(count - 1)];
    const int next = count < rows ? lengths[static_cast<std::size_t>(count)] : 0;
    for (int parts = 1; parts <= plan.most_parts; ++parts) {
      const std::int64_t cost = plan.cost(count, prepared, lengths.front(), next, parts);
      if (cost < least) least = cost, best = count;
    }
  }
  return LongPlan::pays(least, none) ? best : 0;
}

TEST(PrefillPlan, ALongSequenceAmongShortOnesIsTakenOut) {
  for (std::int64_t heads : {2, 8, 32}) {
    std::vector<int> lengths(65, 1);
    lengths[0] = 256;
    EXPECT_EQ(taken_out(heads, lengths), 1) << heads;
  }
}

TEST(PrefillPlan, SeveralLongSequencesAreTakenOut) {
  std::vector<int> lengths(20, 2);
  lengths[0] = 300, lengths[1] = 290, lengths[2] = 280;
  EXPECT_EQ(taken_out(4, lengths), 3);
  // Eight would not leave enough multiprocessors: some of them.
  for (int i = 0; i < 8; ++i) lengths[static_cast<std::size_t>(i)] = 200 - 20 * i;
  EXPECT_GE(taken_out(6, lengths), 1);
  EXPECT_LT(taken_out(6, lengths), 8);
}

TEST(PrefillPlan, WhereManyAreAlikeNoneIsTakenOut) {
  EXPECT_EQ(taken_out(16, std::vector<int>(64, 32)), 0);
  EXPECT_EQ(taken_out(32, std::vector<int>(17, 128)), 0);
}

TEST(PrefillPlan, LongSequencesLeaveMultiprocessorsForTheOthers) {
  for (std::int64_t heads = 1; heads <= 200; ++heads) {
    LongPlan plan;
    const int rows = long_rows(plan, 1000, heads, 1 << 24, 1 << 23, 132);
    EXPECT_LE(rows, kMostLongRows);
    if (rows == 0) continue;
    EXPECT_LT(rows * plan.ctas_a_row(1), 132) << heads;
    EXPECT_EQ(plan.cost(132 / plan.ctas_a_row(1) + 1, 1000, 100, 1, 1), LongPlan::kImpossible);
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

// Nobody said how long the longest is: looked for where that may cost much.
TEST(PrefillPlan, AnUnknownLengthIsLookedForWithFewHeads) {
  LongPlan plan;
  EXPECT_GT(long_rows(plan, 64, 4, 1 << 16, 0, 132), 0);
  EXPECT_EQ(long_rows(plan, 64, 64, 1 << 16, 0, 132), 0);
}

}  // namespace
}  // namespace hyla::gdn
