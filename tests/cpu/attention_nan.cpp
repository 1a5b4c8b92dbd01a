// A NaN among the logits of a query makes its output and its LSE NaN, by every implementation, wherever the
// key lies that it comes from; other queries know nothing of it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cpu/check_call.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

class AttentionNan : public ::testing::TestWithParam<const char*> {};

std::int64_t count_nan(const testing::Call& call) {
  std::int64_t count = 0;
  for (const testing::Buffer& buffer : call.buffers) {
    if (buffer.name() != "out") continue;
    for (std::int64_t i = 0; i < buffer.numel(); ++i) count += std::isnan(buffer.get(i));
  }
  return count;
}

void check(const testing::Call& call, const std::string& what) {
  testing::Call reference = call;
  testing::run(reference, "reference");
  ASSERT_GT(count_nan(reference), 0) << what;
  check_call(what, call);
}

TEST_P(AttentionNan, OfAQueryOrAKeyStaysInItsOutputs) {
  const testing::ProblemSpec spec = testing::parse_problem(GetParam());
  for (const bool extras : {false, true}) {  // with LSE and sinks
    testing::CaseOptions options;
    options.extras = extras;
    const testing::Call call = random_call(spec, options);
    // Every key at once, for one query; a key that some queries see, for all of these.
    for (const std::string name : {"q", "cache.k"}) {
      testing::Call broken = call;
      for (testing::Buffer& buffer : broken.buffers) {
        if (buffer.name().find(name) != 0 || buffer.numel() == 0) continue;
        buffer.set(3 * spec.d + 1, std::numeric_limits<double>::quiet_NaN());
      }
      check(broken, name);
    }
  }
}

// Weights are no reason for a number to know of its neighbours.
TEST(AttentionNanOfValues, StaysInItsNumberOfTheOutputs) {
  for (const char* text : {"attention_decode:b=2,hq=8,hk=1,d=64,kvlen=9,page=16",
                           "attention_decode:b=1,hq=16,hk=1,d=128,kvlen=1100,page=64",
                           "attention_decode:b=1,hq=8,hk=2,d=256,kvlen=70,page=7"}) {
    const testing::ProblemSpec spec = testing::parse_problem(text);
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      testing::Call broken = random_call(spec, testing::CaseOptions::plain());
      for (testing::Buffer& buffer : broken.buffers) {
        if (buffer.name().find("cache.v") == 0) buffer.set(3 * spec.d + 1, bad);
      }
      if (std::isnan(bad)) {
        check(broken, text);
      } else {
        check_call(text, broken);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllWays, AttentionNan,
    ::testing::Values("attention_decode:b=2,hq=4,hk=1,d=64,kvlen=9,page=16",
                      "attention_decode:b=2,hq=8,hk=1,d=64,kvlen=9,page=16",
                      "attention_decode:b=1,hq=16,hk=1,d=64,kvlen=1100,page=0",
                      "attention_decode:b=1,hq=8,hk=1,d=64,kvlen=9,io=f32,kv=f32,page=0",
                      "attention_prefill:lens=40,hq=4,hk=1,d=64,page=0",
                      "attention_prefill:lens=40,hq=4,hk=1,d=64,io=f32,kv=f32,page=0"));

}  // namespace
}  // namespace hyla::cpu_test
