// The sigmoid of 16-bit results keeps the bound that src/cpu/quick_sigmoid.h derives, on every
// instruction set of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu/denormals.h"
#include "cpu/norm.h"

namespace hyla::cpu_test {
namespace {

using cpu::Target;

class QuickSigmoid : public ::testing::TestWithParam<Target> {
 protected:
  static std::vector<float> gates(bool silu, std::vector<float> x) {
    const cpu::FlushDenormals as_in_a_kernel;
    cpu::norm_kernels(GetParam()).quick_gates(silu, x.data(), static_cast<std::int64_t>(x.size()));
    return x;
  }
};

// Both signs, evenly over [-88, 88] and over the exponents down to 2^-40.
std::vector<float> samples() {
  std::vector<float> x;
  for (int i = -88 * 512; i <= 88 * 512; ++i) x.push_back(static_cast<float>(i) / 512.0f);
  for (float magnitude = 0x1p-40f; magnitude < 88.0f; magnitude *= 1.003f) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  return x;
}

TEST_P(QuickSigmoid, IsWithinItsBound) {
  const std::vector<float> x = samples();
  for (const bool silu : {true, false}) {
    const std::vector<float> got = gates(silu, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double z = x[i], sigmoid = 1 / (1 + std::exp(-z)), want = silu ? z * sigmoid : sigmoid;
      double bound = (std::fabs(z) < 16 ? 0x1p-18 : 0x1p-16) * std::fabs(want);
      if (std::fabs(want) < 0x1p-126) bound = std::fabs(want);  // denormals are zero in a kernel
      ASSERT_LE(std::fabs(got[i] - want), bound)
          << (silu ? "silu" : "sigmoid") << " of " << z << " is " << got[i];
    }
  }
}

TEST_P(QuickSigmoid, TakesWhatIsNoOrdinaryNumber) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {inf, -inf, std::nanf(""), 3e38f, -3e38f, -89.0f, 0.0f};
  const std::vector<float> sigmoid = gates(false, x), silu = gates(true, x);
  EXPECT_EQ(sigmoid[0], 1.0f);
  EXPECT_EQ(sigmoid[3], 1.0f);
  EXPECT_EQ(silu[0], inf);
  EXPECT_EQ(silu[3], 3e38f);
  for (const int far : {1, 4, 5}) {
    EXPECT_LE(std::fabs(sigmoid[far]), 0x1p-126f) << x[far];
    EXPECT_LE(std::fabs(silu[far]), 0x1p-120f) << x[far];
  }
  EXPECT_TRUE(std::isnan(sigmoid[2]) && std::isnan(silu[2]));
  EXPECT_NEAR(sigmoid[6], 0.5f, 0x1p-19);
  EXPECT_EQ(silu[6], 0.0f);
}

std::vector<Target> targets() {
  std::vector<Target> all = {Target::kBaseline, Target::kAvx2, Target::kAvx512,
                             Target::kAvx512Bf16};
  std::erase_if(all, [](Target target) { return cpu::refuses(target) != nullptr; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Targets, QuickSigmoid, ::testing::ValuesIn(targets()),
                         [](const auto& target) { return cpu::name_of(target.param); });

}  // namespace
}  // namespace hyla::cpu_test
