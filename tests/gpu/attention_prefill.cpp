// The prefill kernel where its tiles end: rows of several tiles of queries and keys, pages that cut
// tiles everywhere, masks whose edges fall inside, before and behind a tile, groups of heads that
// do not divide a tile.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuAttentionPrefill = Gpu;

TEST_F(GpuAttentionPrefill, EveryPageSizeAndDim) {
  std::uint64_t seed = 5000;
  for (const char* d : {"64", "128", "256"}) {
    for (const char* page : {"0", "1", "3", "8", "16", "24", "48", "64", "256"}) {
      const std::string problem =
          std::string("attention_prefill:lens=90+0+150,kvlen=90+0+231,hq=3,") + "hk=1,d=" + d +
          ",page=" + page + ",seed=" + std::to_string(++seed);
      check_all(problem, options_in_turn(seed));
    }
  }
}

TEST_F(GpuAttentionPrefill, EveryMask) {
  std::uint64_t seed = 5500;
  for (const char* d : {"64", "256"}) {
    for (const char* mask :
         {"mask=none", "mask=window,window=1", "mask=window,window=79", "mask=window,window=80",
          "mask=window,window=81", "mask=chunked,window=80", "mask=chunked,window=33"}) {
      for (const char* page : {"16", "1"}) {
        const std::string problem =
            std::string("attention_prefill:lens=170+5,kvlen=250+163,hq=2,") + "hk=1,d=" + d + "," +
            mask + ",page=" + page + ",seed=" + std::to_string(++seed);
        CaseOptions options;
        options.extras = (seed % 2) != 0;
        check_all(problem, options);
      }
    }
  }
}

TEST_F(GpuAttentionPrefill, Groups) {
  for (const char* heads : {"hq=5,hk=1", "hq=7,hk=1", "hq=12,hk=1", "hq=48,hk=1", "hq=128,hk=1",
                            "hq=6,hk=3", "hq=4,hk=4"}) {
    for (const char* d : {"64", "256"}) {
      check_all(
          std::string("attention_prefill:lens=45,kvlen=101,") + heads + ",d=" + d + ",page=16",
          CaseOptions::plain());
    }
  }
}

// Bytes in tiles of 64 keys, with one scale a head and, among the extras, two.
TEST_F(GpuAttentionPrefill, Quantised) {
  std::uint64_t seed = 5800;
  for (const char* d : {"64", "72", "128", "256"}) {
    for (const char* types : {"io=bf16,kv=e4m3", "io=f16,kv=int8", "io=bf16,kv=int8"}) {
      for (const char* page : {"0", "1", "7", "64"}) {
        for (const char* mask : {"causal", "window,window=65", "none"}) {
          if ((++seed % 3) != 0 && mask[0] != 'c') continue;
          const std::string problem =
              std::string("attention_prefill:lens=90+0+150,kvlen=90+0+231,hq=3,hk=1,d=") + d + "," +
              types + ",page=" + page + ",mask=" + mask + ",seed=" + std::to_string(seed);
          check_all(problem, options_in_turn(seed));
        }
      }
    }
  }
}

// Few queries behind many keys: items are cut along the keys. A row of one tile of keys, one whose
// pieces see nothing of some queries, and one that is decode's beside them.
TEST_F(GpuAttentionPrefill, CutAlongTheKeys) {
  std::uint64_t seed = 5900;
  for (const char* d : {"64", "128", "256"}) {
    for (const char* cache : {"page=16", "page=1", "page=16,kv=e4m3", "page=0"}) {
      for (const char* rows : {"lens=20+17+2,kvlen=2100+1300+50", "lens=30,kvlen=1500,mask=none"}) {
        ++seed;
        check_all(std::string("attention_prefill:") + rows + ",hq=2,hk=1,d=" + d + "," + cache +
                      ",seed=" + std::to_string(seed),
                  options_in_turn(seed));
      }
    }
  }
  // Many tiles of queries, the first of which see less than a piece.
  check_all("attention_prefill:lens=1400,hq=1,hk=1,d=64,page=16", CaseOptions::plain());
  check_repeats("attention_prefill:lens=40,kvlen=3000,hq=8,hk=2,d=256,page=16,seed=3");
}

// Everything unfriendly but gaps, which this kernel leaves to another.
TEST_F(GpuAttentionPrefill, HostileTensors) {
  CaseOptions options = CaseOptions::hostile();
  options.gaps = false;
  for (const char* d : {"64", "128", "256"}) {
    for (const char* cache :
         {"page=16", "page=1", "page=16,kv=e4m3", "page=0", "page=64,kv=int8"}) {
      const std::string problem =
          std::string("attention_prefill:lens=40+0+21,kvlen=140+0+21,hq=4,hk=1,d=") + d + "," +
          cache;
      EXPECT_GE(check_all(problem, options), 2) << problem;
    }
  }
}

// Logits that are small beside the cap keep their digits.
TEST_F(GpuAttentionPrefill, LargeSoftCap) {
  for (const char* shape : {"d=128,page=16", "d=64,page=1,io=f16,kv=f16", "d=256,kv=e4m3"}) {
    for (const char* rows : {"lens=70+91,kvlen=70+300", "lens=3+40,kvlen=9+90"}) {
      for (const double cap : {20.0, 300.0, 1e5, 1e30, 1e38, 1e60}) {
        const std::string problem =
            std::string("attention_prefill:") + rows + ",hq=4,hk=2," + shape;
        Call call = random_call(parse_problem(problem));
        std::get<attention::RunParams>(call.params).softcap = cap;
        check_call(problem + ", cap " + std::to_string(cap), call);
      }
    }
  }
}

// Whoever takes them: scales that vanish in float32, or beside the cap.
TEST_F(GpuAttentionPrefill, VanishingScales) {
  for (const char* rows : {"lens=40+90,kvlen=90", "lens=3+40,kvlen=9+90"}) {
    for (const double scale : {0.0, 1e-60, 1e-44, 1e-20}) {
      for (const double cap : {0.0, 30.0, 1e30}) {
        const std::string problem =
            std::string("attention_prefill:") + rows + ",hq=4,hk=2,d=64,page=16";
        Call call = random_call(parse_problem(problem));
        auto& p = std::get<attention::RunParams>(call.params);
        p.scale = scale;
        p.softcap = cap;
        std::ostringstream name;
        name << problem << ", scale " << scale << ", cap " << cap;
        check_call(name.str(), call);
      }
    }
  }
}

TEST_F(GpuAttentionPrefill, ManyRows) {
  check_all("attention_prefill:lens=20x40+37x20+0x3+33,kvlen=64,hq=2,hk=1,d=64,page=16",
            CaseOptions::plain());
}

TEST_F(GpuAttentionPrefill, SameBitsEveryTime) {
  check_repeats("attention_prefill:lens=300+129+40,hq=8,hk=2,d=128,page=16,seed=7");
  check_repeats("attention_prefill:lens=300,hq=8,hk=1,d=256,page=1,seed=8");
  check_repeats("attention_prefill:lens=300,hq=8,hk=1,d=256,page=16,kv=e4m3,seed=9");
}

TEST_F(GpuAttentionPrefill, ACapturedGraphFollowsNewPages) {
  CaseOptions options;
  options.shuffled = true;
  check_replays("attention_prefill:lens=120+90,hq=4,hk=1,d=128,page=16", options);
  check_replays("attention_prefill:lens=40+20,kvlen=2000+1400,hq=4,hk=1,d=128,page=16", options);
}

}  // namespace
}  // namespace hyla::testing
