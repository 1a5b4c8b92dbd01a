// What the cost model keeps of its last answers is what it would find again.
#include <gtest/gtest.h>

#include <thread>

#include "ops/gdn_prefill/plan.h"
#include "testing/random.h"

namespace hyla::gdn {
namespace {

PlanShape shape(std::int64_t i) {
  const testing::Random draw(7, "kept plans");
  const auto below = [&](std::int64_t n, std::int64_t most) {
    return draw.below(16 * i + n, most);
  };
  PlanShape s{1 + below(0, 9), std::int64_t{1} << below(1, 7), 1 + below(2, 100000), 132};
  s.key_bytes = s.value_bytes = 33e3;
  s.longest = below(3, 2) * below(4, 50000);
  s.norm = below(5, 2) == 1;
  s.narrow_states = below(6, 2) == 1;
  s.reads_states = below(7, 2) == 1;
  return s;
}

void expect_same(const Walks& kept, const Walks& found) {
  EXPECT_EQ(kept.parts, found.parts);
  EXPECT_EQ(kept.blocks_a_cta, found.blocks_a_cta);
  EXPECT_EQ(kept.cuts, found.cuts);
  EXPECT_EQ(kept.us, found.us);
  EXPECT_EQ(kept.beside, found.beside);
}

// Each shape twice, then one that differs in a single field.
void compare(std::int64_t first) {
  for (std::int64_t i = first; i < first + 100; ++i) {
    PlanShape s = shape(i);
    for (int k = 0; k < 3; ++k) {
      if (k == 2) s.norm = !s.norm;
      expect_same(segment_walks(s), find_walks(Plan::kSegments, s));
      expect_same(relay_walks(s), find_walks(Plan::kRelay, s));
      expect_same(split_walks(s), find_walks(Plan::kSplit, s));
      EXPECT_EQ(fused_us(s), expected_us(Plan::kFused, s));
      EXPECT_EQ(block_us(s), expected_us(Plan::kBlock, s));
      EXPECT_EQ(steps_us(s), expected_us(Plan::kSteps, s));
      EXPECT_EQ(vk_us(s), expected_us(Plan::kVk, s));
    }
  }
}

TEST(PrefillPlanKept, IsWhatWouldBeFound) { compare(0); }

TEST(PrefillPlanKept, ByEachThreadForItself) {
  std::thread other(compare, 1000);
  compare(2000);
  other.join();
}

}  // namespace
}  // namespace hyla::gdn
