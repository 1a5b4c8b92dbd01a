// The state that an MTP call keeps knows nothing of the tokens behind a row's commit length: NaN
// there stays in the outputs of those tokens.
#include "testing/rejected_tokens.h"

#include <gtest/gtest.h>

#include <string>

#include "cpu/check_call.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

TEST(RejectedTokens, MayBeNaN) {
  for (const char* dims : {"hq=1,hv=2,k=128,v=128", "hq=2,hv=2,k=40,v=24"}) {
    for (const char* types : {"io=bf16", "io=f32,state=bf16,layout=kv"}) {
      for (int tokens = 2; tokens <= 9; ++tokens) {
        const std::string problem = "gdn_mtp:mode=accepted,b=6,t=" + std::to_string(tokens) + "," +
                                    dims + "," + types + ",seed=" + std::to_string(tokens);
        testing::Call call = random_call(testing::parse_problem(problem));
        ASSERT_GT(testing::spoil_rejected_tokens(call), 0) << problem;
        check_call(problem, call);
      }
    }
  }
}

}  // namespace
}  // namespace hyla::cpu_test
