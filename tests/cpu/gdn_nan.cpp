// A NaN, whatever its bits, is one in the state that it reaches: roundings that add to the bits of a
// number must not make another one of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "cpu/check_call.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

class GdnNan : public ::testing::TestWithParam<const char*> {};

TEST_P(GdnNan, WithAnyBitsReachesTheState) {
  const testing::Call call =
      random_call(testing::parse_problem(GetParam()), testing::CaseOptions::plain());
  int inputs = 0;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (call.buffers[i].dtype() != DType::kFloat32 || call.buffers[i].numel() == 0) continue;
    if (call.buffers[i].name() == "out") continue;
    ++inputs;
    for (const std::uint32_t bits : {0xffffffffu, 0x7fffffffu, 0x7fff8000u}) {
      testing::Call broken = call;
      std::memcpy(broken.buffers[i].data(), &bits, sizeof bits);
      check_call(call.buffers[i].name(), broken);
    }
  }
  EXPECT_GT(inputs, 1);
}

INSTANTIATE_TEST_SUITE_P(
    RoundedStates, GdnNan,
    ::testing::Values("gdn_decode:b=1,hq=1,hv=2,state=bf16,gate=linear,beta=prob,io=f32,norm=0",
                      "gdn_decode:b=1,hq=1,hv=2,state=bf16,gate=raw,beta=logit",
                      "gdn_decode:b=1,hq=1,hv=2,state=bf16,gate=linear,beta=prob",
                      "gdn_mtp:b=1,t=4,hq=1,hv=2,state=bf16,gate=linear,beta=prob,io=f32,norm=0",
                      "gdn_mtp:b=1,t=5,hq=1,hv=2,state=bf16,gate=linear,beta=prob",
                      "gdn_mtp:b=1,t=3,hq=1,hv=1,v=40,state=bf16,layout=kv,io=f32,norm=0",
                      "gdn_mtp:b=1,t=5,hq=1,hv=1,state=bf16,layout=kv"));

}  // namespace
}  // namespace hyla::cpu_test
