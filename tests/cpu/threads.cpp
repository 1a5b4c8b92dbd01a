// Threads change nothing but the time: not a bit of a result, whoever's threads they are.
#include <gtest/gtest.h>
#include <hyla/thread_pool.h>

#include <cstring>
#include <string>

#include "cpu/pool.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

using testing::Call;
using testing::CaseOptions;

Call outcome(const Call& call, const Context& context, const std::string& implementation = {}) {
  Call copy = call;
  copy.context = context;
  testing::run(copy, implementation);
  return copy;
}

void expect_same_bits(const Call& a, const Call& b, const std::string& what) {
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    EXPECT_EQ(std::memcmp(a.buffers[i].data(), b.buffers[i].data(), a.buffers[i].data_bytes()), 0)
        << a.buffers[i].name() << " differs: " << what;
  }
}

class CpuThreads : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuThreads, ResultsDoNotDependOnTheirNumber) {
  CaseOptions options = CaseOptions::hostile();
  options.extras = false;  // a fused norm looks at whole heads, which are not split then
  const Call call = random_call(testing::parse_problem(GetParam()), options);
  for (const Candidate& candidate : testing::explain(call)) {
    if (!candidate.supported || candidate.implementation == "reference") continue;
    Context one;
    one.threads = 1;
    const Call alone = outcome(call, one, candidate.implementation);
    for (const int threads : {2, 3, 7}) {
      const std::string what = candidate.implementation + " on " + std::to_string(threads);
      std::atomic<int> calls{0};
      expect_same_bits(alone, outcome(call, on_threads(threads, &calls), candidate.implementation),
                       what + " threads of the caller");
      EXPECT_EQ(calls, 1) << what << ": the caller's pool was not asked once";
      ThreadPool pool(threads);
      expect_same_bits(alone, outcome(call, pool.on(), candidate.implementation),
                       what + " threads of a ThreadPool");
      Context own;
      own.threads = threads;
      expect_same_bits(alone, outcome(call, own, candidate.implementation), what + " threads");
    }
  }
}

// Fewer heads than threads among them, so that heads are split.
INSTANTIATE_TEST_SUITE_P(
    Gdn, CpuThreads,
    ::testing::Values(
        "gdn_decode:b=5,hq=2,hv=4", "gdn_decode:b=1,hq=1,hv=1,k=256,v=256",
        "gdn_decode:b=5,hq=1,hv=3,state=bf16", "gdn_decode:b=5,hq=1,hv=3,v=136,state=bf16,io=f32",
        "gdn_decode:b=5,hq=1,hv=3,v=136,state=bf16",
        "gdn_decode:b=4,hq=1,hv=2,k=256,v=136,layout=kv,state=bf16", "gdn_mtp:b=1,t=8,hq=1,hv=1",
        "gdn_mtp:b=2,t=4,hq=1,hv=1,layout=kv,v=136", "gdn_mtp:b=1,t=6,hq=1,hv=2,mode=all,state=f16",
        "gdn_recurrence:lens=20+40,hq=1,hv=1,k=64,v=72",
        "gdn_recurrence:lens=40,hq=1,hv=1,k=64,v=72,layout=vk", "gdn_prefill:lens=70,hq=1,hv=1",
        "gdn_prefill:lens=40+33+70,hq=1,hv=3", "gdn_prefill:lens=5+8,hq=1,hv=1",
        "gdn_mtp:b=2,t=19,hq=1,hv=1", "gdn_prefill:lens=70,hq=1,hv=1,io=f32,v=48"));

INSTANTIATE_TEST_SUITE_P(Around, CpuThreads,
                         ::testing::Values("conv_prefill:lens=40+0+70,hq=2,hv=4,k=64,v=136",
                                           "conv_update:b=40,hq=2,hv=4,k=64,v=136,io=f32,state=f32",
                                           "norm_gated_rms:b=60,hv=7,v=128"));

INSTANTIATE_TEST_SUITE_P(
    Attention, CpuThreads,
    ::testing::Values("attention_decode:b=2,hq=8,hk=1,d=64,kvlen=2100+3,page=16",
                      "attention_decode:b=12,hq=8,hk=2,d=64,kvlen=40x3+1+1030+7+300x6,page=16",
                      "attention_decode:b=1,t=4,hq=24,hk=6,d=64,kvlen=1100,page=16",
                      "attention_decode:b=1,hq=24,hk=6,d=64,kvlen=30",
                      "attention_decode:b=2,hq=48,hk=6,d=64,kvlen=300,page=16",
                      "attention_decode:b=2,hq=16,hk=2,d=128,kvlen=300,page=16,kv=e4m3",
                      "attention_prefill:lens=70+40,hq=4,hk=2,d=64"));

INSTANTIATE_TEST_SUITE_P(Append, CpuThreads,
                         ::testing::Values("attention_append:lens=200+1+90,hk=4,d=128",
                                           "attention_append:lens=200+1+90,hk=4,d=128,by=slots",
                                           "attention_merge:b=90,hq=7,d=128",
                                           "attention_append:lens=300,hk=4,d=128,rope=halves,"
                                           "kv=e4m3"));

TEST(CpuThreads, CallsOfManyThreadsDoNotDisturbEachOther) {
  const Call call = random_call(testing::parse_problem("gdn_prefill:lens=70,hq=1,hv=2,k=64,v=64"));
  Context one;
  one.threads = 1;
  const Call alone = outcome(call, one);
  std::vector<Call> copies(4, call);
  std::vector<std::thread> threads;
  for (Call& copy : copies) {
    copy.context = on_threads(2);
    threads.emplace_back([&copy] { testing::run(copy); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Call& copy : copies) expect_same_bits(alone, copy, "beside other calls");
}

}  // namespace
}  // namespace hyla::cpu_test
