// Attention on the GPU against the float64 reference: every CUDA implementation that takes a
// problem, over dims, dtypes, caches and masks. Keys beyond a row's length, pages of nobody and the
// tokens between rows hold NaN; unused entries of a page table point far outside the pool.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuAttention = Gpu;

const std::vector<std::string> kDecodes = {
    "attention_decode:b=3,hq=4,hk=2,kvlen=1+300+97,", "attention_decode:b=1,hq=8,hk=1,kvlen=900,",
    "attention_decode:b=2,t=4,hq=8,hk=1,kvlen=4+133,", "attention_decode:b=40,hq=2,hk=2,kvlen=20,"};
const std::vector<std::string> kPrefills = {"attention_prefill:lens=20+0+40+1,hq=4,hk=2,",
                                            "attention_prefill:lens=20+8,kvlen=60,hq=4,hk=1,"};

std::vector<std::string> all() {
  std::vector<std::string> result = kDecodes;
  result.insert(result.end(), kPrefills.begin(), kPrefills.end());
  return result;
}

TEST_F(GpuAttention, EveryDtypeAndPageSize) {
  std::uint64_t seed = 0;
  for (const std::string& operation : all()) {
    for (const char* types : {"io=bf16,kv=bf16", "io=f16,kv=f16", "io=f32,kv=bf16",
                              "io=bf16,kv=e4m3", "io=f16,kv=int8", "io=bf16,kv=f16"}) {
      for (const char* page : {"0", "1", "7", "64"}) {
        const std::string problem =
            operation + "d=64," + types + ",page=" + page + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

TEST_F(GpuAttention, EveryDim) {
  std::uint64_t seed = 500;
  for (const std::string& operation : all()) {
    for (const char* d : {"8", "40", "96", "128", "248", "256"}) {
      for (const char* types : {"io=bf16,kv=bf16", "io=f16,kv=e4m3"}) {
        const std::string problem =
            operation + "d=" + d + "," + types + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

TEST_F(GpuAttention, EveryMask) {
  std::uint64_t seed = 1000;
  for (const std::string& operation : all()) {
    for (const char* mask : {"mask=none", "mask=window,window=1", "mask=window,window=33",
                             "mask=chunked,window=16", "mask=chunked,window=50"}) {
      for (const char* d : {"128", "256"}) {
        const std::string problem = operation + mask + ",d=" + d + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::hostile());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

TEST_F(GpuAttention, Groups) {
  std::uint64_t seed = 1500;
  for (const char* heads : {"hq=1,hk=1", "hq=3,hk=1", "hq=12,hk=2", "hq=20,hk=1", "hq=40,hk=1",
                            "hq=8,hk=8", "hq=32,hk=8", "hq=12,hk=4"}) {
    for (const char* t : {"t=1", "t=2", "t=3", "t=5", "t=16"}) {
      for (const char* types : {"io=bf16,kv=bf16", "io=bf16,kv=int8"}) {
        const std::string problem = std::string("attention_decode:b=3,kvlen=150+16+47,") + heads +
                                    "," + t + "," + types + ",d=128,seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

TEST_F(GpuAttention, HostileTensors) {
  for (const std::string& operation : all()) {
    for (int seed = 3000; seed < 3008; ++seed) {
      check_all(operation + "d=128,seed=" + std::to_string(seed), CaseOptions::hostile());
    }
  }
}

TEST_F(GpuAttention, Append) {
  std::uint64_t seed = 4000;
  for (const char* rows : {"b=5,t=1,kvlen=70", "lens=33+0+70+1", "b=2,t=40,kvlen=41+90"}) {
    for (const char* types : {"io=bf16,kv=bf16", "io=f16,kv=f16", "io=f32,kv=bf16",
                              "io=bf16,kv=e4m3", "io=f16,kv=int8"}) {
      for (const char* rope : {"none", "halves", "pairs"}) {
        for (const char* shape : {"d=256,page=16", "d=72,page=7", "d=128,page=0"}) {
          const std::string problem = std::string("attention_append:hk=2,") + rows + "," + types +
                                      "," + shape + ",rope=" + rope +
                                      ",seed=" + std::to_string(seed);
          check_all(problem, CaseOptions::plain());
          check_all(problem, CaseOptions::drawn(++seed));
        }
      }
    }
  }
}

TEST_F(GpuAttention, SameBitsEveryTime) {
  for (const std::string& operation : all()) check_repeats(operation + "d=128,seed=7");
}

TEST_F(GpuAttention, ACapturedGraphFollowsNewPages) {
  CaseOptions options;
  options.shuffled = options.extras = true;
  for (const std::string& operation : all()) check_replays(operation + "d=64", options);
}

}  // namespace
}  // namespace hyla::testing
