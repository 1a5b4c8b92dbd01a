// What sweeps over problems measure: numbers drawn on the device, and calls over them.
#include "testing/device_prefill.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gpu/check.h"
#include "testing/prefill_shapes.h"

namespace hyla::testing {
namespace {

using GpuDevicePrefill = Gpu;

// The device draws what the host would, up to how a product and a sum are rounded.
TEST_F(GpuDevicePrefill, NumbersAreThoseOfTheHost) {
  constexpr std::int64_t kCount = 100000;
  constexpr double kMean = 0.25, kDeviation = 1.5;
  for (const auto& [dtype, half_ulp] :
       {std::pair{DType::kFloat32, 0x1p-24}, std::pair{DType::kBFloat16, 0x1p-8},
        std::pair{DType::kFloat16, 0x1p-11}}) {
    Buffer got("numbers", dtype, {kCount});
    const cuda::Memory memory(cuda::allocate(got.data_bytes()));
    cuda::fill(memory.get(), 0xff, got.data_bytes());
    cuda::fill_normal(memory.get(), dtype, kCount, kMean, kDeviation, 7);
    cuda::synchronize();
    cuda::download(got.data(), memory.get(), got.data_bytes());
    const Random random(7, "device");
    double worst = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double want = kMean + kDeviation * random.normal(i);
      const double error = std::abs(got.get(i) - want) / std::max(std::abs(want), 1e-3);
      if (!(error <= worst)) worst = error;
    }
    EXPECT_LE(worst, 1.001 * half_ulp);
  }
}

TEST_F(GpuDevicePrefill, EveryPlanOfARandomShapeRuns) {
  DeviceArena arena;
  int plans = 0;
  for (std::int64_t i = 0; i < 12; ++i) {
    ProblemSpec spec = random_prefill_shape(11, i);
    for (std::int64_t& length : spec.lens) length = std::min<std::int64_t>(length, 500);
    const DevicePrefill problem(spec, arena);
    EXPECT_GE(problem.copies(), 1u);
    for (const Candidate& candidate : problem.explain()) {
      if (candidate.expected_us == 0) continue;
      problem.launch(candidate.implementation);
      ++plans;
    }
    EXPECT_NO_THROW(cuda::synchronize()) << to_string(spec);
  }
  EXPECT_GT(plans, 24);
}

TEST_F(GpuDevicePrefill, OtherProblemsAreRefused) {
  DeviceArena arena;
  for (const char* text : {"gdn_decode:b=2,device=cuda", "gdn_prefill:lens=5,device=cuda",
                           "gdn_prefill:lens=5,gate=raw,beta=logit"}) {
    EXPECT_THROW(DevicePrefill(parse_problem(text), arena), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace hyla::testing
