// Convolutions and the gated norm on the GPU against the float64 reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuConv = Gpu;
using GpuNorm = Gpu;
using GpuConvOf = GpuParts;

const std::vector<std::string> kConvolutions = {
    "conv_update:b=5,",
    "conv_update:b=3,t=4,",
    "conv_update:b=5,channels_last=1,",
    "conv_update:b=5,drafts=2,channels_last=1,",
    "conv_update:lens=3+0+1+4,drafts=3,channels_last=1,",
    "conv_update:lens=3+0+1+4,drafts=5,",
    "conv_prefill:lens=3+0+70+1,",
    "conv_prefill:lens=17+0+16+33,channels_last=1,",
    "conv_prefill:lens=130,"};

TEST_P(GpuConvOf, EveryOperationDtypeAndStride) {
  std::uint64_t seed = 0;
  for (const std::string& operation : kConvolutions) {
    for (const char* io : {"bf16", "f16", "f32"}) {
      for (const char* state : {"f32", "bf16", "f16"}) {
        const std::string problem = operation + "hq=2,hv=4,k=16,v=24,io=" + io + ",state=" + state +
                                    "," + GetParam() + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Widths, GpuConvOf, ::testing::Values("width=2", "width=3", "width=4"));

TEST_F(GpuConv, HostileTensors) {
  for (const std::string& operation : kConvolutions) {
    for (int seed = 500; seed < 532; ++seed) {
      check_all(operation + "hq=2,hv=4,k=32,v=32,seed=" + std::to_string(seed),
                CaseOptions::hostile());
    }
  }
}

// Rows are found among cu_seqlens by a search in rounds of 32; from 64 rows on a step takes two.
TEST_F(GpuConv, ManyRows) {
  CaseOptions options = CaseOptions::scattered();
  for (const char* rows :
       {"conv_prefill:lens=3x33", "conv_prefill:lens=0x40+20x31+0x1100+1x7+50",
        "conv_prefill:lens=2x1500", "conv_update:b=63", "conv_update:b=64", "conv_update:b=129",
        "conv_update:b=129,channels_last=1,drafts=1", "conv_update:b=300,t=2"}) {
    check_all(std::string(rows) + ",hq=1,hv=1,k=8,v=16", CaseOptions::plain());
    check_all(std::string(rows) + ",hq=1,hv=1,k=8,v=16", options);
  }
}

TEST_F(GpuConv, SameBitsEveryTime) {
  for (const std::string& operation : kConvolutions) check_repeats(operation + "seed=3");
}

TEST_F(GpuConv, ACapturedGraphFollowsNewSlots) {
  CaseOptions options = CaseOptions::scattered();
  for (const std::string& operation : kConvolutions) {
    check_replays(operation + "hq=2,hv=4,k=16,v=16,slots=32", options);
  }
}

TEST_F(GpuNorm, EveryDtypeAndStride) {
  std::uint64_t seed = 0;
  for (const char* io : {"bf16", "f16", "f32"}) {
    for (const char* dims : {"hv=4,v=128", "hv=3,v=8", "hv=1,v=256", "hv=5,v=40", "hv=2,v=136"}) {
      for (int b : {1, 7, 70}) {
        const std::string problem = "norm_gated_rms:b=" + std::to_string(b) + "," + dims +
                                    ",io=" + io + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

// The bits of a result that has memory of its own, by every implementation.
TEST_F(GpuNorm, OutMayBeX) {
  for (const char* problem : {"norm_gated_rms:b=7,hv=4", "norm_gated_rms:b=7,hv=3,v=40,io=f32"}) {
    for (bool gaps : {false, true}) {
      CaseOptions options;
      options.gaps = gaps;
      const Call call = random_call(parse_problem(problem), options);
      Call in_place = call;
      auto& p = std::get<norm::GatedRmsParams>(in_place.params);
      p.out = p.x;
      const DeviceCall apart(call), together(in_place);
      for (const Candidate& candidate : together.explain()) {
        if (!candidate.supported) continue;
        together.upload(in_place);
        apart.launch(candidate.implementation);
        together.launch(candidate.implementation);
        const Call want = apart.result(), got = together.result();
        const TensorView& x = std::get<norm::GatedRmsParams>(got.params).x;
        const TensorView& out = std::get<norm::GatedRmsParams>(want.params).out;
        std::vector<double> values;
        for_each_element(out, [&](std::int64_t, std::int64_t offset) {
          values.push_back(load_element(out, offset));
        });
        for_each_element(x, [&](std::int64_t i, std::int64_t offset) {
          ASSERT_EQ(load_element(x, offset), values[static_cast<std::size_t>(i)])
              << problem << " by " << candidate.implementation;
        });
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
