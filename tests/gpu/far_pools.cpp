// Pools of more than 2^31 elements.
#include <gtest/gtest.h>

#include <string>

#include "gpu/check.h"
#include "testing/far_pool.h"

namespace hyla::testing {
namespace {

using GpuFarPools = Gpu;

void check_far(const std::string& problem, const CaseOptions& options) {
  const Call near = random_call(parse_problem(problem), options);
  const std::int64_t shift = far_shift(near);
  ASSERT_GT(shift, 0) << problem;
  Call far = near;
  shift_slots(far, shift);
  const Judge judge(near);
  const DeviceCall gpu(far, {.far_slots = shift});
  int ran = 0;
  for (const Candidate& candidate : gpu.explain()) {
    if (!candidate.supported) continue;
    gpu.upload(far);
    gpu.launch(candidate.implementation);
    Call result = gpu.result();
    shift_slots(result, -shift);
    const Comparison comparison = judge.compare(result);
    EXPECT_TRUE(comparison.ok) << problem << " by " << candidate.implementation << ": "
                               << comparison.failure;
    ++ran;
  }
  EXPECT_GT(ran, 0) << problem;
}

TEST_F(GpuFarPools, EveryOperationWithAPool) {
  CaseOptions options = CaseOptions::scattered();
  for (const char* problem :
       {"gdn_decode:b=9,hq=2,hv=4", "gdn_decode:b=9,hq=2,hv=4,layout=kv,state=bf16",
        "gdn_mtp:b=5,t=3,hq=2,hv=4", "gdn_mtp:b=5,t=8,hq=2,hv=4,layout=kv",
        "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4",
        "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,layout=vk,state=bf16",
        "conv_update:b=9,hq=2,hv=4,k=64,v=64",
        "conv_update:b=9,t=3,hq=2,hv=4,k=64,v=64,drafts=3,channels_last=1",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64,channels_last=1"}) {
    check_far(problem, options);
  }
}

TEST_F(GpuFarPools, HostileTensors) {
  for (const char* problem : {"gdn_decode:b=9,hq=2,hv=4,seed=1", "gdn_mtp:b=5,t=3,hq=2,hv=4,seed=2",
                              "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,seed=3",
                              "conv_update:b=9,hq=2,hv=4,k=64,v=64,seed=4",
                              "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64,seed=5"}) {
    check_far(problem, CaseOptions::hostile());
  }
}

}  // namespace
}  // namespace hyla::testing
