#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hyla/norm.h>

#include <cmath>
#include <vector>

namespace {

TEST(GatedRms, ByHand) {
  const std::vector<float> x = {3, 4}, z = {0, 1}, weight = {5, 2};
  std::vector<float> out(2);
  hyla::norm::GatedRmsParams params{.x = {x.data(), {1, 2}},
                                    .z = {z.data(), {1, 2}},
                                    .weight = {weight.data(), {2}},
                                    .out = {out.data(), {1, 2}},
                                    .eps = 3.5};
  // mean = (9 + 16) / 2 = 12.5, rsqrt(12.5 + 3.5) = 1/4; silu(0) = 0, silu(1) = 0.7310586
  hyla::norm::gated_rms(params);
  EXPECT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 4 / 4.0f * 2 * 0.7310586f);
  // sigmoid(0) = 1/2, sigmoid(1) = 0.7310586
  params.gate = hyla::norm::Activation::kSigmoid;
  hyla::norm::gated_rms(params);
  EXPECT_EQ(out[0], 3 / 4.0f * 5 / 2);
  EXPECT_FLOAT_EQ(out[1], 4 / 4.0f * 2 * 0.7310586f);
}

}  // namespace
