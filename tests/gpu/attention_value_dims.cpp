// Keys and values of different widths in every attention kernel: both inside the kernel's padding,
// each the wider one, widths that fill no 64-element chunk.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuAttentionValueDims = Gpu;

const std::vector<const char*> kDims = {"d=192,dv=128", "d=128,dv=64", "d=64,dv=128",
                                        "d=256,dv=64",  "d=72,dv=40",  "d=96,dv=256",
                                        "d=128,dv=256", "d=64,dv=8",   "d=200,dv=136"};

// Every implementation that takes the call, among them the one that is meant.
void check_among(const std::string& meant, const std::string& problem, const CaseOptions& options) {
  const Call call = random_call(parse_problem(problem), options);
  std::set<std::string> names;
  for (const Candidate& candidate : DeviceCall(call).explain()) {
    if (candidate.supported) names.insert(candidate.implementation);
  }
  EXPECT_TRUE(names.contains(meant)) << problem << " is not taken by " << meant;
  check_call(problem, call);
}

void check_dims(const std::string& meant, const std::string& rows,
                const std::vector<const char*>& types, std::uint64_t seed) {
  for (const char* dims : kDims) {
    for (const char* type : types) {
      for (const char* page : {"1", "16", "64"}) {
        ++seed;
        check_among(
            meant,
            rows + "," + dims + "," + type + ",page=" + page + ",seed=" + std::to_string(seed),
            options_in_turn(seed));
      }
    }
  }
}

const std::vector<const char*> kSixteenBits = {"io=bf16,kv=bf16", "io=f16,kv=f16"};
const std::vector<const char*> kBytes = {"io=bf16,kv=e4m3", "io=f16,kv=int8"};

TEST_F(GpuAttentionValueDims, Prefill) {
  check_dims("cuda_prefill", "attention_prefill:lens=70+0+90,kvlen=70+0+150,hq=4,hk=2",
             kSixteenBits, 8000);
}

// Loaded as bytes: too few queries for anything else.
TEST_F(GpuAttentionValueDims, PrefillOverBytes) {
  check_dims("cuda_prefill", "attention_prefill:lens=70+0+90,kvlen=70+0+150,hq=2,hk=2", kBytes,
             8100);
}

// Widened in the workspace before.
TEST_F(GpuAttentionValueDims, PrefillWidened) {
  check_dims("cuda_widened", "attention_prefill:lens=70+80,kvlen=70+150,hq=8,hk=1", kBytes, 8200);
}

// Items that are cut along the keys.
TEST_F(GpuAttentionValueDims, PrefillInPieces) {
  for (const char* dims : {"d=192,dv=128", "d=64,dv=128", "d=256,dv=64"}) {
    for (const char* cache : {"page=16", "page=1", "page=16,kv=e4m3"}) {
      check_among("cuda_prefill",
                  std::string("attention_prefill:lens=20+17,kvlen=1600+1300,hq=2,hk=1,") + dims +
                      "," + cache,
                  CaseOptions{});
    }
  }
}

TEST_F(GpuAttentionValueDims, Decode) {
  check_dims("cuda_decode", "attention_decode:b=3,hq=8,hk=4,kvlen=1+150+47", kSixteenBits, 8300);
}

// More packed queries than a warp has rows.
TEST_F(GpuAttentionValueDims, DecodeOfDrafts) {
  check_dims("cuda_decode", "attention_decode:b=2,t=4,hq=8,hk=2,kvlen=150+47", kSixteenBits, 8400);
}

// Rows of bytes that are no multiple of 16 are the generic kernel's.
TEST_F(GpuAttentionValueDims, DecodeOverBytes) {
  std::uint64_t seed = 8500;
  for (const char* dims : {"d=192,dv=128", "d=128,dv=64", "d=64,dv=128", "d=256,dv=64",
                           "d=96,dv=256", "d=144,dv=48"}) {
    for (const char* type : kBytes) {
      for (const char* rows : {"b=3,hq=8,hk=4,page=16", "b=2,t=4,hq=8,hk=2,page=1"}) {
        CaseOptions options = options_in_turn(++seed);
        options.extras = false;  // two scales a head are cuda_prefill's
        check_among("cuda_decode",
                    std::string("attention_decode:kvlen=150,") + rows + "," + dims + "," + type +
                        ",seed=" + std::to_string(seed),
                    options);
      }
    }
  }
}

TEST_F(GpuAttentionValueDims, PromptsBesideDecodeRows) {
  std::uint64_t seed = 8600;
  for (const char* dims : kDims) {
    for (const char* cache : {"page=16", "page=1,io=f16,kv=f16", "page=64"}) {
      for (const char* kvlen : {"600+41+71+9", "150+41+71+9"}) {
        CaseOptions options = options_in_turn(++seed);
        options.starts = false;  // tokens of nobody may make a sum that looks like equal rows
        check_among("cuda_mixed",
                    std::string("attention_prefill:lens=1+41+71+4,hq=4,hk=2,kvlen=") + kvlen + "," +
                        dims + "," + cache + ",seed=" + std::to_string(seed),
                    options);
      }
    }
  }
}

TEST_F(GpuAttentionValueDims, BatchInvariant) {
  std::uint64_t seed = 8700;
  for (const char* dims : kDims) {
    for (const char* cache : {"page=16", "page=1,io=f16,kv=f16"}) {
      const std::string problem = std::string("attention_prefill:lens=1+41+2,hq=4,hk=2,") +
                                  "kvlen=1100+60+9," + dims + "," + cache +
                                  ",seed=" + std::to_string(++seed);
      Call call = random_call(parse_problem(problem), options_in_turn(seed));
      call.context.batch_invariant = true;
      check_call(problem, call);
    }
  }
}

TEST_F(GpuAttentionValueDims, Append) {
  std::uint64_t seed = 8800;
  for (const char* dims : kDims) {
    for (const char* type :
         {"io=bf16,kv=bf16", "io=f16,kv=f16", "io=bf16,kv=e4m3", "io=f16,kv=int8"}) {
      for (const char* page : {"1", "16", "64"}) {
        ++seed;
        check_all(std::string("attention_append:lens=33+0+5,kvlen=40+3+5,hk=2,") + dims + "," +
                      type + ",page=" + page + (seed % 2 == 0 ? ",rope=halves" : "") +
                      ",seed=" + std::to_string(seed),
                  options_in_turn(seed));
      }
    }
  }
}

TEST_F(GpuAttentionValueDims, ACapturedGraphFollowsNewPages) {
  CaseOptions options;
  options.shuffled = true;
  check_replays("attention_prefill:lens=120+90,hq=4,hk=1,d=192,dv=128,page=16", options);
  check_replays("attention_decode:b=3,hq=8,hk=1,d=192,dv=128,kvlen=300,page=16", options);
  check_repeats("attention_prefill:lens=1+41+70,hq=4,hk=1,kvlen=600,d=192,dv=128,page=16");
}

}  // namespace
}  // namespace hyla::testing
