// Convolutions and the gated norm on the GPU against the float64 reference.
#include <gtest/gtest.h>

#include <bit>
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
    "conv_prefill:lens=130,",
    "conv_update:b=5,in_place=1,",
    "conv_update:lens=3+0+1+4,in_place=1,",
    "conv_prefill:lens=3+0+70+1,in_place=1,"};

// The numbers of a tensor in the order of its indices, as bits: slots that nobody uses are NaN.
std::vector<std::uint64_t> numbers(const TensorView& view) {
  std::vector<std::uint64_t> result;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    result.push_back(std::bit_cast<std::uint64_t>(load_element(view, offset)));
  });
  return result;
}

// Written over x, a result has the bits of one that has memory of its own, by every implementation,
// and so has what else is written. An input that is read after its output was stored shows: not
// always, so it is run a few times.
template <class Params>
void check_in_place(const std::string& problem, const CaseOptions& options) {
  const Call call = random_call(parse_problem(problem), options);
  Call in_place = call;
  auto& p = std::get<Params>(in_place.params);
  p.out = p.x;
  const DeviceCall apart(call), together(in_place);
  int ran = 0;
  for (const Candidate& candidate : together.explain()) {
    if (!candidate.supported) continue;
    ++ran;
    for (int again = 0; again < 4; ++again) {
      together.upload(in_place);
      apart.upload(call);
      together.launch(candidate.implementation);
      apart.launch(candidate.implementation);
      const Call want = apart.result(), got = together.result();
      const std::vector<NamedTensor> from = tensors(want), to = tensors(got);
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (to[i].access != Access::kWrite) continue;
        ASSERT_TRUE(numbers(to[i].view) == numbers(from[i].view))
            << problem << " by " << candidate.implementation << ": " << to[i].name;
      }
    }
  }
  EXPECT_GT(ran, 0) << problem;
}

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

TEST_F(GpuConv, OutMayBeX) {
  const std::vector<std::string> prefills = {"lens=3+0+70+1", "lens=2100", "b=3,t=700",
                                             "lens=600+0+17x9,channels_last=1"};
  const std::vector<std::string> updates = {"b=5",
                                            "b=130",
                                            "b=3,t=4",
                                            "b=2,t=70",
                                            "lens=3+0+1+14,drafts=13,channels_last=1",
                                            "lens=3+0+1+4,drafts=5"};
  for (const char* shape : {",hq=2,hv=4,k=16,v=24", ",hq=1,hv=2,k=128,v=128,io=f32"}) {
    for (bool gaps : {false, true}) {
      CaseOptions options;
      options.gaps = gaps;
      for (const std::string& rows : prefills) {
        check_in_place<conv::PrefillParams>("conv_prefill:" + rows + shape, options);
      }
      for (const std::string& rows : updates) {
        check_in_place<conv::UpdateParams>("conv_update:" + rows + shape, options);
      }
      options.extras = true;  // checkpoints, commit lengths
      check_in_place<conv::PrefillParams>("conv_prefill:lens=90+0+1100" + std::string(shape),
                                          options);
      for (const char* seed : {"seed=1", "seed=2", "seed=3", "seed=4"}) {
        check_in_place<conv::UpdateParams>("conv_update:lens=5+1+9," + (seed + std::string(shape)),
                                           options);
      }
    }
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

TEST_F(GpuNorm, OutMayBeX) {
  for (const char* problem : {"norm_gated_rms:b=7,hv=4", "norm_gated_rms:b=7,hv=3,v=40,io=f32"}) {
    for (bool gaps : {false, true}) {
      CaseOptions options;
      options.gaps = gaps;
      check_in_place<norm::GatedRmsParams>(problem, options);
    }
  }
}

}  // namespace
}  // namespace hyla::testing
