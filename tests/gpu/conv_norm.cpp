// Convolutions and the gated norm on the GPU against the float64 reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuConv = Gpu;
using GpuNorm = Gpu;

const std::vector<std::string> kConvolutions = {"conv_update:b=5,", "conv_update:b=3,t=4,",
                                                "conv_prefill:lens=3+0+70+1,",
                                                "conv_prefill:lens=130,"};

TEST_F(GpuConv, EveryDtypeWidthAndStride) {
  std::uint64_t seed = 0;
  for (const std::string& operation : kConvolutions) {
    for (const char* io : {"bf16", "f16", "f32"}) {
      for (const char* state : {"f32", "bf16", "f16"}) {
        for (const char* width : {"2", "3", "4"}) {
          const std::string problem = operation + "hq=2,hv=4,k=16,v=24,io=" + io +
                                      ",state=" + state + ",width=" + width +
                                      ",seed=" + std::to_string(seed);
          check_all(problem, CaseOptions::plain());
          check_all(problem, CaseOptions::drawn(++seed));
          check_all(problem, CaseOptions::drawn(++seed));
        }
      }
    }
  }
}

TEST_F(GpuConv, HostileTensors) {
  for (const std::string& operation : kConvolutions) {
    for (int seed = 500; seed < 532; ++seed) {
      check_all(operation + "hq=2,hv=4,k=32,v=32,seed=" + std::to_string(seed),
                CaseOptions::hostile());
    }
  }
}

TEST_F(GpuConv, SameBitsEveryTime) {
  for (const std::string& operation : kConvolutions) check_repeats(operation + "seed=3");
}

TEST_F(GpuConv, ACapturedGraphFollowsNewSlots) {
  CaseOptions options;
  options.shuffled = options.padding = options.elsewhere = true;
  for (const std::string& operation : kConvolutions) {
    check_replays(operation + "hq=2,hv=4,k=16,v=16,slots=32", options);
  }
}

TEST_F(GpuNorm, EveryDtypeAndStride) {
  std::uint64_t seed = 0;
  for (const char* io : {"bf16", "f16", "f32"}) {
    for (const char* dims : {"hv=4,v=128", "hv=3,v=8", "hv=1,v=256", "hv=5,v=40"}) {
      for (int b : {1, 7}) {
        const std::string problem = "norm_gated_rms:b=" + std::to_string(b) + "," + dims +
                                    ",io=" + io + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
