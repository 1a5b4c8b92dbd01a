// Chunked prefill with K above 128 on the matrix units: a state of 256 keys, columns in two halves,
// zeros past K. Every option against the float64 reference; the kernels that walk token by token
// are judged beside it where they take the problem.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefillWide = Gpu;

bool takes(const Call& call, const std::string& implementation) {
  for (const Candidate& candidate : DeviceCall(call).explain()) {
    if (candidate.implementation == implementation) return candidate.supported;
  }
  return false;
}

// Of tensors that the copy engine takes: by cuda_split among others.
void check(const std::string& problem) {
  const Call call = random_call(parse_problem(problem), CaseOptions::plain());
  EXPECT_TRUE(takes(call, "cuda_split")) << problem;
  check_call(problem, call);
}

TEST_F(GpuPrefillWide, EveryLength) {
  std::uint64_t seed = 10;
  for (const char* lens : {"1", "63", "64", "65", "128+0+1", "200+64+3x4", "130+0+0+321"}) {
    const std::string problem = std::string("gdn_prefill:k=256,v=64,hq=1,hv=2,lens=") + lens +
                                ",seed=" + std::to_string(++seed);
    check(problem);
    check_all(problem, CaseOptions::drawn(seed));
  }
}

TEST_F(GpuPrefillWide, EveryDim) {
  std::uint64_t seed = 100;
  for (const char* dims : {"k=136,v=8", "k=144,v=128", "k=192,v=192", "k=200,v=72", "k=248,v=256",
                           "k=256,v=64", "k=256,v=136"}) {
    const std::string problem = std::string("gdn_prefill:lens=100+3+64,hq=1,hv=1,checkpoint=64,") +
                                dims + ",seed=" + std::to_string(++seed);
    check(problem);
    check_all(problem, CaseOptions::drawn(seed));
    check(problem + ",layout=kv,io=f16,norm=1");
  }
}

TEST_F(GpuPrefillWide, EveryDtypeAndLayout) {
  std::uint64_t seed = 200;
  for (const char* io : {"bf16", "f16"}) {
    for (const char* state : {"f32", "bf16", "f16"}) {
      for (const char* layout : {"vk", "kv"}) {
        const std::string problem = std::string("gdn_prefill:lens=150+64+7,hq=1,hv=1,k=256,v=64") +
                                    ",io=" + io + ",state=" + state + ",layout=" + layout +
                                    ",checkpoint=64,seed=" + std::to_string(++seed);
        check(problem);
        check_all(problem, CaseOptions::drawn(seed));
      }
    }
  }
}

TEST_F(GpuPrefillWide, EveryGate) {
  std::uint64_t seed = 300;
  for (const char* gate : {"none", "linear", "log", "raw"}) {
    for (const char* beta : {"none", "prob", "logit"}) {
      for (const char* norm : {"0", "1"}) {
        // beta = 1 on keys that are not normalised can grow without bound.
        if (std::string(beta) == "none" && std::string(norm) == "0") continue;
        const std::string problem = std::string("gdn_prefill:lens=80+30,hq=1,hv=2,k=256,v=64") +
                                    ",gate=" + gate + ",beta=" + beta + ",norm=" + norm +
                                    ",seed=" + std::to_string(++seed);
        check(problem);
      }
    }
  }
}

TEST_F(GpuPrefillWide, GroupsOfHeads) {
  std::uint64_t seed = 400;
  for (const char* heads : {"hq=1,hv=5", "hq=3,hv=6", "hq=4,hk=2,hv=2", "hq=6,hk=1,hv=1"}) {
    check(std::string("gdn_prefill:lens=100+65,k=256,v=64,") + heads +
          ",seed=" + std::to_string(++seed));
  }
}

// Two parts of a sequence at once, and many tasks.
TEST_F(GpuPrefillWide, LongAndMany) {
  for (const char* io : {"bf16", "f16"}) {
    check(std::string("gdn_prefill:lens=1100,hq=1,hv=1,k=256,v=64,checkpoint=192,io=") + io);
  }
  check("gdn_prefill:lens=1100+1+64+900,hq=1,hv=1,k=192,v=64,seed=3");
  check("gdn_prefill:lens=200+3x20+64x8+0x5+130x3,hq=1,hv=2,k=256,v=64,seed=7");
}

// More blocks of value rows than multiprocessors: two of them share a CTA.
TEST_F(GpuPrefillWide, Pairs) {
  check("gdn_prefill:lens=70x20+5x14+200,hq=1,hv=2,k=256,v=128,checkpoint=64,seed=8");
  check("gdn_prefill:lens=70x10+5x6+150,hq=1,hv=2,k=192,v=200,io=f16,norm=1,layout=kv,seed=9");
  check(
      "gdn_prefill:lens=64x16+1x18+0,hq=2,hv=2,k=256,v=128,state=bf16,gate=raw,beta=logit,seed=10");
}

TEST_F(GpuPrefillWide, HostileTensors) {
  for (int seed = 600; seed < 604; ++seed) {
    check_all("gdn_prefill:lens=130+0+64+5x3,hq=1,hv=2,k=256,v=64,checkpoint=64,seed=" +
                  std::to_string(seed),
              CaseOptions::hostile());
  }
}

TEST_F(GpuPrefillWide, SameBitsEveryTime) {
  check_repeats("gdn_prefill:lens=300+64+3x50,hq=1,hv=2,k=256,v=256,checkpoint=64,seed=7");
  check_repeats("gdn_prefill:lens=1500,hq=2,hv=4,k=256,v=256,seed=7");
}

TEST_F(GpuPrefillWide, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  check_replays("gdn_prefill:lens=200+64+30+0+65,hq=1,hv=1,k=256,v=64,slots=32", options);
}

template <class Value>
void fill(const TensorView& view, Value&& value) {
  for_each_element(view, [&](std::int64_t index, std::int64_t offset) {
    store_element(view, offset, value(index, load_element(view, offset)));
  });
}

TEST_F(GpuPrefillWide, CornersOfTheGate) {
  const auto with = [](const char* what, const char* gate, auto&& alpha) {
    Call call = random_call(
        parse_problem(std::string("gdn_prefill:lens=100+400,hq=1,hv=1,k=256,v=64,gate=") + gate));
    fill(std::get<gdn::PrefillParams>(call.params).gate.value, alpha);
    check_call(what, call);
  };
  with("alpha = 0", "linear",
       [](std::int64_t i, double x) { return i % 7 == 3 || i % 64 == 0 ? 0.0 : x; });
  with("alpha = 1", "linear", [](std::int64_t, double) { return 1.0; });
  with("ln(alpha) = -inf", "log",
       [](std::int64_t i, double x) { return i % 5 == 2 ? -INFINITY : x; });
  with("ln(alpha) = -100", "log", [](std::int64_t i, double x) { return i % 3 == 0 ? x : -100.0; });
}

// Keys of length 16 and beta up to 1 under gates that wipe more than the keys add: rows of the
// inverse that fp16 cannot hold.
TEST_F(GpuPrefillWide, LongKeysThatGrowBetweenWipes) {
  Call call =
      random_call(parse_problem("gdn_prefill:lens=200+300,hq=1,hv=2,k=256,v=64,gate=linear"));
  auto& params = std::get<gdn::PrefillParams>(call.params);
  fill(params.k, [](std::int64_t, double x) { return 16 * x; });
  fill(params.gate.value, [](std::int64_t i, double x) { return i / 2 % 3 == 0 ? 0.0 : x; });
  check_call("|k| = 16, alpha = 0 every third token", call);
}

}  // namespace
}  // namespace hyla::testing
