// attention.merge on the GPU against the float64 reference: every implementation that takes a
// problem. Sides without keys hold NaN.
#include <gtest/gtest.h>

#include <string>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuMerge = Gpu;

TEST_F(GpuMerge, EveryDtypeAndDim) {
  std::uint64_t seed = 6000;
  for (const char* io : {"bf16", "f16", "f32"}) {
    for (const char* d : {"8", "24", "64", "72", "128", "256", "512", "576"}) {
      for (const char* rows : {"b=1,hq=1", "b=33,hq=3", "b=7,hq=16", "b=0,hq=2"}) {
        for (const char* place : {"0", "1"}) {
          const std::string problem = std::string("attention_merge:") + rows + ",io=" + io +
                                      ",d=" + d + ",in_place=" + place +
                                      ",seed=" + std::to_string(seed);
          check_all(problem, CaseOptions::plain());
          check_all(problem, CaseOptions::drawn(++seed));
        }
      }
    }
  }
}

TEST_F(GpuMerge, SameBitsEveryTime) {
  check_repeats("attention_merge:b=33,hq=3,d=128");
  check_repeats("attention_merge:b=33,hq=3,d=40,io=f32");
}

TEST_F(GpuMerge, ACapturedGraphFollowsNewNumbers) {
  check_replays("attention_merge:b=9,hq=4,d=128", CaseOptions::plain());
}

}  // namespace
}  // namespace hyla::testing
