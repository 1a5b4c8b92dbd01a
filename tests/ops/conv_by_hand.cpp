// One channel, width 3, weights 1, 10, 100 for the oldest to the newest input: the digits of an
// output show which inputs met which tap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hyla/conv.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace {

using hyla::conv::Activation;
using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<float> kWeight = {1, 10, 100};

TEST(ConvByHand, PrefillContinuesFromTheWindowAndLeavesTheNext) {
  std::vector<float> x = {1, 2, 3}, out(3, kNan), state = {8, 9};
  const std::vector<std::int32_t> cu_seqlens = {0, 3};
  hyla::conv::prefill({.x = {x.data(), {3, 1}},
                       .weight = {kWeight.data(), {1, 3}},
                       .out = {out.data(), {3, 1}},
                       .state = {state.data(), {1, 1, 2}},
                       .cu_seqlens = {cu_seqlens.data(), {2}},
                       .activation = Activation::kNone});
  // 8 + 90 + 100, 9 + 10 + 200, 1 + 20 + 300
  EXPECT_THAT(out, ElementsAre(198, 219, 321));
  EXPECT_THAT(state, ElementsAre(2, 3));
}

TEST(ConvByHand, PrefillWithoutAPoolStartsFromZeros) {
  std::vector<float> x = {1, 2, 3, 4}, out(4, kNan);
  hyla::conv::prefill({.x = {x.data(), {2, 2, 1}},
                       .weight = {kWeight.data(), {1, 3}},
                       .out = {out.data(), {2, 2, 1}},
                       .activation = Activation::kNone});
  // 100, 10 + 200; the second row starts anew: 300, 30 + 400
  EXPECT_THAT(out, ElementsAre(100, 210, 300, 430));
}

TEST(ConvByHand, BiasAndSilu) {
  std::vector<float> x = {0.01f, 1}, out(2, kNan);
  const std::vector<float> bias = {-1};
  hyla::conv::prefill({.x = {x.data(), {1, 2, 1}},
                       .weight = {kWeight.data(), {1, 3}},
                       .out = {out.data(), {1, 2, 1}},
                       .bias = {bias.data(), {1}}});
  // y = 100 * 0.01 - 1 = 0 up to the rounding of 0.01f; silu(0) = 0
  EXPECT_NEAR(out[0], 0, 1e-6);
  // y = 10 * 0.01 + 100 - 1 = 99.1; silu(99.1) = 99.1 / (1 + exp(-99.1)) = 99.1
  EXPECT_FLOAT_EQ(out[1], 99.1f);
}

TEST(ConvByHand, RollingRowShiftsAllItsColumns) {
  std::vector<float> x = {1, 2}, out(2, kNan), state = {6, 7, 8, 9};
  hyla::conv::update({.x = {x.data(), {1, 2, 1}},
                      .weight = {kWeight.data(), {1, 3}},
                      .out = {out.data(), {1, 2, 1}},
                      .state = {state.data(), {1, 1, 4}},
                      .activation = Activation::kNone});
  EXPECT_THAT(out, ElementsAre(198, 219));
  EXPECT_THAT(state, ElementsAre(8, 9, 1, 2));
}

TEST(ConvByHand, CommitLengthKeepsOnlyTheFirstTokens) {
  std::vector<float> x = {1, 2, 3}, out(3, kNan), state = {8, 9};
  const std::vector<std::int32_t> commit = {1};
  hyla::conv::update({.x = {x.data(), {1, 3, 1}},
                      .weight = {kWeight.data(), {1, 3}},
                      .out = {out.data(), {1, 3, 1}},
                      .state = {state.data(), {1, 1, 2}},
                      .commit_lengths = {commit.data(), {1}},
                      .activation = Activation::kNone});
  EXPECT_THAT(out, ElementsAre(198, 219, 321));
  EXPECT_THAT(state, ElementsAre(9, 1));
}

TEST(ConvByHand, DraftTokensStayInTheRowAndTheNextOffsetPicksAmongThem) {
  std::vector<float> x = {1, 2, 3}, out(3, kNan), state = {-5, 8, 9, -5};
  std::vector<std::int32_t> offset = {1};
  hyla::conv::UpdateParams params{.x = {x.data(), {1, 3, 1}},
                                  .weight = {kWeight.data(), {1, 3}},
                                  .out = {out.data(), {1, 3, 1}},
                                  .state = {state.data(), {1, 1, 4}},
                                  .window_offsets = {offset.data(), {1}},
                                  .activation = Activation::kNone};
  hyla::conv::update(params);
  EXPECT_THAT(out, ElementsAre(198, 219, 321));
  EXPECT_THAT(state, ElementsAre(9, 1, 2, 3));

  // Two of the three are accepted: the window is 1, 2, at offset 1.
  x = {4};
  params.x = {x.data(), {1, 1, 1}};
  params.out = {out.data(), {1, 1, 1}};
  hyla::conv::update(params);
  EXPECT_EQ(out[0], 1 + 20 + 400);
  EXPECT_THAT(state, ElementsAre(2, 4, 2, 3)) << "columns past the new inputs are left alone";
}

TEST(ConvByHand, PrefillMovesTheWindowToOffsetZero) {
  std::vector<float> x = {1}, out(1, kNan), state = {-5, 8, 9, -5};
  const std::vector<std::int32_t> offset = {1}, cu_seqlens = {0, 1};
  hyla::conv::prefill({.x = {x.data(), {1, 1}},
                       .weight = {kWeight.data(), {1, 3}},
                       .out = {out.data(), {1, 1}},
                       .state = {state.data(), {1, 1, 4}},
                       .cu_seqlens = {cu_seqlens.data(), {2}},
                       .window_offsets = {offset.data(), {1}},
                       .activation = Activation::kNone});
  EXPECT_EQ(out[0], 198);
  EXPECT_THAT(state, ElementsAre(9, 1, 9, -5));
}

TEST(ConvByHand, CheckpointsAreTheWindowsOnTheWay) {
  std::vector<float> x = {1, 2, 3}, out(3, kNan), state = {8, 9, kNan, kNan, kNan, kNan};
  const std::vector<std::int32_t> cu_seqlens = {0, 3}, read = {0}, offsets = {0, 1, -1},
                                  slots = {2, 1, 99};
  hyla::conv::prefill({.x = {x.data(), {3, 1}},
                       .weight = {kWeight.data(), {1, 3}},
                       .out = {out.data(), {3, 1}},
                       .state = {state.data(), {3, 1, 2}},
                       .cu_seqlens = {cu_seqlens.data(), {2}},
                       .read_slots = {read.data(), {1}},
                       .checkpoint_offsets = {offsets.data(), {1, 3}},
                       .checkpoint_slots = {slots.data(), {1, 3}}});
  EXPECT_THAT(state, ElementsAre(2, 3, 9, 1, 8, 9));
}

}  // namespace
