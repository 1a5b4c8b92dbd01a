#include "testing/median.h"

#include <gtest/gtest.h>

namespace hyla::testing {
namespace {

TEST(Median, IsInTheMiddle) {
  EXPECT_EQ(median({5.0}), 5.0);
  EXPECT_EQ(median({9.0, 1.0, 4.0}), 4.0);
  EXPECT_EQ(median({4.0, 4.0, 1.0, 9.0, 0.0}), 4.0);
}

TEST(Median, OfAnEvenNumberIsTheMeanOfBoth) {
  EXPECT_EQ(median({1.0, 2.0}), 1.5);
  EXPECT_EQ(median({9.0, 3.0, 1.0, 6.0}), 4.5);  // (3 + 6) / 2
}

}  // namespace
}  // namespace hyla::testing
