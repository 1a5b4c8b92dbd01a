// Decode, MTP and recurrence on the GPU against the float64 reference: every CUDA implementation
// that takes a problem, over dims, dtypes, layouts, gates and modes, on friendly and on hostile
// tensors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuRows = Gpu;
using GpuRowsOf = GpuParts;
using GpuDecodeOf = GpuParts;

const std::vector<std::string> kOperations = {
    "gdn_decode:b=5,",           "gdn_mtp:b=3,t=4,",
    "gdn_mtp:b=3,t=5,mode=all,", "gdn_mtp:b=4,t=6,mode=accepted,",
    "gdn_mtp:lens=1+4+0+2,",     "gdn_recurrence:lens=3+0+7+1,"};

TEST_F(GpuRows, EveryDtypeAndLayout) {
  std::uint64_t seed = 0;
  for (const std::string& operation : kOperations) {
    for (const char* io : {"bf16", "f16", "f32"}) {
      for (const char* state : {"f32", "bf16", "f16"}) {
        for (const char* layout : {"vk", "kv"}) {
          const std::string problem = operation + "hq=2,hv=4,k=64,v=64,io=" + io +
                                      ",state=" + state + ",layout=" + layout +
                                      ",seed=" + std::to_string(seed);
          check_all(problem, CaseOptions::plain());
          check_all(problem, CaseOptions::drawn(++seed));
        }
      }
    }
  }
}

TEST_P(GpuRowsOf, EveryDim) {
  const std::vector<std::string> dims = {"k=128,v=128", "k=256,v=256", "k=64,v=256", "k=256,v=64",
                                         "k=8,v=8",     "k=16,v=72",   "k=72,v=40",  "k=104,v=128",
                                         "k=248,v=8",   "k=32,v=32",   "k=128,v=64"};
  std::uint64_t seed = 1000;
  for (const std::string& dim : dims) {
    for (const char* layout : {"vk", "kv"}) {
      for (const char* state : {"f32", "bf16"}) {
        const std::string problem = GetParam() + "hq=1,hv=3," + dim + ",layout=" + layout +
                                    ",state=" + state + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Operations, GpuRowsOf, ::testing::ValuesIn(kOperations));

TEST_F(GpuRows, EveryGate) {
  std::uint64_t seed = 2000;
  for (const std::string& operation : kOperations) {
    for (const char* gate : {"none", "linear", "log", "raw"}) {
      for (const char* beta : {"none", "prob", "logit"}) {
        for (const char* norm : {"0", "1"}) {
          const std::string problem = operation + "hq=2,hv=6,k=64,v=64,gate=" + gate +
                                      ",beta=" + beta + ",norm=" + norm +
                                      ",seed=" + std::to_string(seed);
          check_all(problem, CaseOptions::drawn(++seed));
        }
      }
    }
  }
}

TEST_F(GpuRows, HostileTensors) {
  for (const std::string& operation : kOperations) {
    for (int seed = 3000; seed < 3016; ++seed) {
      const std::string problem = operation + "hq=2,hv=4,k=128,v=128,seed=" + std::to_string(seed);
      check_all(problem, CaseOptions::hostile());
    }
  }
}

// Sizes on both sides of every boundary in policy.h.
TEST_P(GpuDecodeOf, SmallAndLargeVariants) {
  for (int b : {1, 3, 9, 17, 33, 130, 260}) {
    if (b > 130 && GetParam() != "state=bf16,layout=kv") continue;
    if (b > 33 && GetParam().starts_with("state=f16")) continue;  // bfloat16's kernels
    const std::string problem = "gdn_decode:b=" + std::to_string(b) + ",hq=4,hv=8," + GetParam();
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
  }
}
INSTANTIATE_TEST_SUITE_P(States, GpuDecodeOf,
                         ::testing::Values("state=f32,layout=vk", "state=f32,layout=kv",
                                           "state=bf16,layout=vk", "state=bf16,layout=kv",
                                           "state=f16,layout=vk", "state=f16,layout=kv"));

// 16-bit KV states, most of which wait in shared memory, with other numbers of keys than 128.
TEST_F(GpuRows, StagedWithFewerAndMoreKeys) {
  for (const char* dims :
       {"b=80,k=256,state=bf16", "b=40,k=256,v=256,io=f16,state=f16", "b=300,k=64,state=bf16",
        "b=200,k=64,state=bf16", "b=400,k=64,v=64,io=f16,state=f16", "b=60,k=64,v=64,state=bf16",
        "b=100,k=64,state=bf16"}) {
    const std::string problem = std::string("gdn_decode:hq=1,hv=2,layout=kv,") + dims;
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
  }
}

// VK states in pieces of a row, up to 8 MiB, most with other numbers of keys than 128.
TEST_F(GpuRows, PiecesOfShorterAndLongerRows) {
  CaseOptions slots;
  slots.shuffled = slots.padding = true;
  for (const char* dims :
       {"b=5,k=256", "b=20,k=256", "b=40,k=64,v=64", "b=100,k=64,v=64", "b=8,k=256,state=bf16",
        "b=30,k=256,state=bf16", "b=60,k=64,v=64,state=bf16", "b=200,k=64,v=64,state=bf16",
        "b=30,k=256,io=f16,state=f16", "b=2,k=256,state=bf16", "b=200,k=64,v=64", "b=1",
        "b=2,state=bf16", "b=1,k=64,v=64", "b=400,k=64,v=64,state=bf16",
        "b=60,k=64,v=64,io=f16,state=f16"}) {
    const std::string problem = std::string("gdn_decode:hq=1,hv=2,") + dims;
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
    check_all(problem, slots);
  }
}

// KV states in pieces of 8 bytes: 16 bits, 128 keys, up to 4 MiB, lines side by side; and what is
// almost that.
TEST_F(GpuRows, HalvesOfPieces) {
  CaseOptions slots;
  slots.shuffled = slots.padding = true;
  for (const char* dims :
       {"b=1,state=bf16", "b=40,state=bf16", "b=5,io=f16,state=f16", "b=3,v=64,state=bf16",
        "b=3,v=256,state=bf16", "b=2,gated=1,state=bf16", "b=5,gated=1,io=f16,state=f16"}) {
    const std::string problem = std::string("gdn_decode:hq=1,hv=2,layout=kv,") + dims;
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
    check_all(problem, slots);
    check_all(problem, CaseOptions::hostile());
  }
}

// A head is a cluster; the row kernels take every call that is not the usual one.
TEST_P(GpuDecodeOf, FusedNorm) {
  CaseOptions slots;
  slots.shuffled = slots.padding = true;
  for (const char* dims : {"b=3", "b=10", "b=14,io=f16", "b=28", "b=3,v=64", "b=2,v=96"}) {
    const std::string problem =
        std::string("gdn_decode:") + dims + ",hq=4,hv=8,gated=1," + GetParam();
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
    check_all(problem, slots);
  }
}

TEST_F(GpuRows, FusedNormOfManyRows) {
  for (const char* rows : {"b=66,state=bf16", "b=66,state=bf16,layout=kv", "b=34,layout=kv", "b=34",
                           "b=40,state=bf16"}) {
    const std::string problem = std::string("gdn_decode:hq=4,hv=8,gated=1,") + rows;
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
  }
}

TEST_F(GpuRows, SameBitsEveryTime) {
  for (const std::string& operation : kOperations) check_repeats(operation + "hq=2,hv=4,seed=7");
  check_repeats("gdn_decode:b=5,hq=2,hv=4,state=bf16,seed=7");
  check_repeats("gdn_decode:b=5,hq=2,hv=4,gated=1,layout=kv,seed=7");
}

TEST_F(GpuRows, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  for (const std::string& operation : kOperations) {
    check_replays(operation + "hq=2,hv=4,k=64,v=64,slots=32", options);
  }
}

}  // namespace
}  // namespace hyla::testing
