#include "testing/turns.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hyla::testing {
namespace {

void spin(double us) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  while (std::chrono::duration<double, std::micro>(Clock::now() - begin).count() < us) {
  }
}

TEST(Turns, ARatioIsTheMedianOverTurnsNotThatOfMedians) {
  const Turns turns{{{2, 9, 4}, {1, 3, 4}}};
  EXPECT_EQ(turns.median_us(0), 4);
  EXPECT_EQ(turns.median_us(1), 3);
  EXPECT_EQ(turns.best_us(0), 2);
  EXPECT_EQ(turns.ratio(0, 1), 2);  // of 2/1, 9/3 and 4/4
}

TEST(Turns, LongWorkIsDoneOnceATurnAndThenTheOthers) {
  std::vector<int> order;
  const auto first = [&] { order.push_back(0), spin(1200); };
  const auto second = [&] {
    if (order.back() == 0) order.push_back(1);  // more than once where the first was held up
    spin(1200);
  };
  const Turns turns = time_in_turn({first, second}, 0);
  ASSERT_EQ(turns.us.size(), 2u);
  EXPECT_EQ(turns.us[0].size(), 3u);
  EXPECT_EQ(turns.us[1].size(), 3u);
  ASSERT_EQ(order.size(), 2u * (1 + 3));  // once to warm up
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int>(i % 2));
  EXPECT_GE(turns.best_us(0), 1200);
}

TEST(Turns, ShortWorkIsNotJudgedByItsFirstCall) {
  constexpr double kColdUs = 300, kWarmUs = 20;  // most of a turn is left for warm calls
  int last = -1;
  const auto work = [&](int which) {
    return [&last, which] {
      if (last != which) spin(kColdUs);  // its data was thrown out of the caches by the other
      last = which;
      spin(kWarmUs);
    };
  };
  const Turns turns = time_in_turn({work(0), work(1)}, 0);
  for (std::size_t which : {0u, 1u}) {
    EXPECT_GE(turns.best_us(which), kWarmUs);
    EXPECT_LT(turns.best_us(which), kColdUs);
  }
}

TEST(Turns, WorkIsRunForAsLongAsAsked) {
  const Turns turns = time_in_turn({[] { spin(1000); }}, 0.02);
  EXPECT_GE(turns.us[0].size(), 5u);
  double all = 0;
  for (double us : turns.us[0]) all += us;
  EXPECT_GE(all, 20000);
}

}  // namespace
}  // namespace hyla::testing
