// A NaN among the inputs is seen in the results: no implementation takes it for a number, an empty
// row or a state that was wiped.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuNan = Gpu;

bool is_input(const NamedTensor& tensor) {
  const bool number = tensor.view.dtype == DType::kFloat32 ||
                      tensor.view.dtype == DType::kBFloat16 || tensor.view.dtype == DType::kFloat16;
  // Keys and values of a cache are finite by contract.
  return number && tensor.access == Access::kRead && tensor.name.find("cache") != 0;
}

// The first element that is there becomes NaN. False: there is none.
bool spoil(const Call& call, const std::string& name) {
  bool done = false;
  for (const NamedTensor& tensor : tensors(call)) {
    if (tensor.name != name) continue;
    for_each_element(tensor.view, [&](std::int64_t, std::int64_t offset) {
      if (done || is_poison(tensor.view, offset)) return;
      store_element(tensor.view, offset, std::numeric_limits<double>::quiet_NaN());
      done = true;
    });
  }
  return done;
}

struct Counted {
  std::int64_t expected = 0, lost = 0;
};

// Elements that are NaN in `want`, and those of them that are numbers in `got`.
Counted count_lost(const Call& want, const Call& got) {
  Counted counted;
  const std::vector<NamedTensor> wanted = tensors(want), gotten = tensors(got);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].access != Access::kWrite) continue;
    for_each_element(wanted[i].view, [&](std::int64_t, std::int64_t offset) {
      if (is_poison(wanted[i].view, offset)) return;
      if (!std::isnan(load_element(wanted[i].view, offset))) return;
      ++counted.expected;
      if (!std::isnan(load_element(gotten[i].view, offset))) ++counted.lost;
    });
  }
  return counted;
}

TEST_F(GpuNan, ReachesTheResults) {
  for (const char* problem :
       {"gdn_decode:b=3,hq=2,hv=4", "gdn_decode:b=3,hq=2,hv=4,layout=kv,io=f16,gate=log",
        "gdn_mtp:b=3,t=4,hq=2,hv=4", "gdn_mtp:b=3,t=4,hq=2,hv=4,k=64,v=72,beta=prob",
        "gdn_recurrence:lens=3+5,hq=1,hv=2", "gdn_prefill:lens=70+9,hq=1,hv=2,gate=log",
        "gdn_prefill:lens=70+9,hq=1,hv=2,gate=linear,beta=prob,io=f16",
        "gdn_prefill:lens=5+130,hq=1,hv=2,k=256,v=64", "gdn_prefill:lens=17x4,hq=1,hv=2",
        "conv_update:b=3,hq=1,hv=2", "conv_prefill:lens=30+3,hq=1,hv=2", "norm_gated_rms:b=3,hv=2",
        "attention_decode:b=3,hq=8,hk=2,d=128,kvlen=1+30+300,page=16",
        "attention_decode:b=3,hq=8,hk=2,d=128,kvlen=1+30+300,page=16,kv=e4m3,invariant=1",
        "attention_prefill:lens=3+130,kvlen=200,hq=4,hk=2,d=128,page=16",
        "attention_prefill:lens=3+13,kvlen=60,hq=4,hk=2,d=72,page=0,io=f32,kv=f32"}) {
    CaseOptions options;
    options.extras = true;
    const Call call = random_call(parse_problem(problem), options);
    for (const NamedTensor& tensor : tensors(call)) {
      if (!is_input(tensor)) continue;
      const Call spoilt = call;
      if (!spoil(spoilt, tensor.name)) continue;
      Call want = spoilt;
      run(want, "reference");
      const DeviceCall gpu(spoilt);
      for (const Candidate& candidate : gpu.explain()) {
        if (!candidate.supported) continue;
        gpu.upload(spoilt);
        gpu.launch(candidate.implementation);
        const Counted counted = count_lost(want, gpu.result());
        EXPECT_EQ(counted.lost, 0) << "of " << counted.expected << ": " << problem << " by "
                                   << candidate.implementation << ", " << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
