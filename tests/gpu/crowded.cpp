// Grids that start while the one before them runs, and CTAs that wait for others, beside another
// stream's kernel that holds most of the device: every implementation ends, with the bits it has
// alone.
#include "gpu/check.h"
#include "gpu/crowd.h"

namespace hyla::testing {
namespace {

class GpuCrowded : public Gpu {};

TEST_F(GpuCrowded, EveryImplementationEndsWithItsBits) {
  cuda::Crowd crowd;
  for (const char* problem :
       {"gdn_prefill:lens=8300,hq=2,hv=4,seed=61", "gdn_prefill:lens=5000+60x40,hq=2,hv=4,seed=62",
        "gdn_prefill:lens=700x3,hq=2,hv=4,io=f16,norm=1,seed=63",
        "gdn_prefill:lens=900,hq=4,hv=4,k=256,v=128,seed=64", "gdn_mtp:b=9,t=4,hq=8,hv=16,seed=65",
        "gdn_decode:b=40,hq=8,hv=16,seed=66", "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,seed=67",
        "attention_decode:b=3,kvlen=4000+9000+4,hq=8,hk=1,d=128,page=16,seed=68",
        "attention_decode:b=130,kvlen=17x60+1500+20x69,hq=8,hk=2,d=128,page=16,seed=69",
        "attention_prefill:lens=20+150+1,kvlen=2100+150+6000,hq=8,hk=1,d=128,page=16,seed=70"}) {
    const Call call = random_call(parse_problem(problem));
    const DeviceCall gpu(call);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      const std::string what = problem + std::string(" by ") + candidate.implementation;
      gpu.upload(call);
      gpu.launch(candidate.implementation);
      const Call alone = gpu.result();
      for (const int left : {0, 1, 60}) {
        gpu.upload(call);
        cuda::synchronize();
        crowd.hold(left);
        gpu.launch(candidate.implementation);
        crowd.let_go(10);
        cuda::must_end(gpu.context().stream, 20, what.c_str());
        crowd.end();
        expect_same_bits(alone, gpu.result(), what);
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
