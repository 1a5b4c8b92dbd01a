// Rows whose keys several CTAs see: their pieces are added up by a second kernel, in an order that
// the lengths decide.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuAttentionPieces = Gpu;

// From two pieces a row to one row with nearly all of them.
const std::vector<std::string> kRows = {
    "attention_decode:b=130,kvlen=40x130,", "attention_decode:b=130,kvlen=17x60+1500+20x69,",
    "attention_decode:b=120,kvlen=4x20+200x2+5+90x97,", "attention_decode:b=3,kvlen=40+900+4,"};
const std::vector<std::string> kShapes = {
    "hq=8,hk=1,d=256",        "hq=4,hk=2,d=256,kv=e4m3", "hq=8,hk=4,d=128", "hq=3,hk=1,d=64",
    "hq=2,hk=2,d=96,kv=int8", "hq=8,hk=1,d=256,t=2",     "hq=8,hk=8,d=64",  "hq=16,hk=4,d=128,t=4"};

TEST_F(GpuAttentionPieces, EveryShape) {
  std::uint64_t seed = 9000;
  for (const std::string& rows : kRows) {
    for (const std::string& shape : kShapes) {
      const std::string problem = rows + shape + ",page=16,seed=" + std::to_string(seed);
      check_all(problem, ++seed % 2 == 0 ? CaseOptions{} : CaseOptions::drawn(seed));
    }
  }
}

// Calls that are long by what their tables have room for: one row, rows as long as each other, others.
TEST_F(GpuAttentionPieces, KeysAheadOfThePlan) {
  std::uint64_t seed = 9200;
  for (const char* problem :
       {"b=1,kvlen=70000,hq=2,hk=2,d=256,page=64", "b=70,kvlen=1000,hq=2,hk=1,d=256,page=64",
        "b=40,kvlen=900+30x20+1800x19,hq=2,hk=1,d=256,page=16",
        "b=100,kvlen=3x99+700,hq=2,hk=1,d=256,page=8",
        "b=60,kvlen=70x50+4600x10,hq=2,hk=1,d=256,kv=e4m3,page=64",
        "b=30,kvlen=20x24+4600x6,hq=2,hk=2,d=256,kv=int8,page=16",
        "b=40,kvlen=900+30x20+1800x19,hq=4,hk=4,d=128,page=64",
        "b=24,kvlen=30x12+1800x12,hq=8,hk=8,d=128,page=16",
        "b=24,kvlen=30x12+1800x12,hq=8,hk=8,d=64,page=8"}) {
    const std::string whole = std::string("attention_decode:") + problem + ",seed=";
    check_all(whole + std::to_string(++seed), CaseOptions{});
    ++seed;
    check_all(whole + std::to_string(seed), CaseOptions::drawn(seed));
    check_repeats(whole + std::to_string(++seed));
  }
}

// Drafts, large groups: CTAs share a row, or a CTA has one or two.
TEST_F(GpuAttentionPieces, RowsThatAreAllAsLong) {
  std::uint64_t seed = 9100;
  for (const char* rows : {"b=65,kvlen=300", "b=260,kvlen=70", "b=520,kvlen=70"}) {
    for (const char* shape : {"hq=8,hk=1,d=256,t=2", "hq=40,hk=1,d=64", "hq=16,hk=2,d=128,t=2"}) {
      const std::string problem =
          std::string("attention_decode:") + rows + "," + shape + ",page=16,seed=";
      check_all(problem + std::to_string(++seed), CaseOptions{});
    }
  }
}

TEST_F(GpuAttentionPieces, SameBitsEveryTime) {
  for (const std::string& rows : kRows) {
    check_repeats(rows + "hq=8,hk=1,d=256,page=16,seed=3");
    check_repeats(rows + "hq=16,hk=4,d=128,kv=e4m3,seed=4");
  }
}

// Which CTAs leave pieces, and for whom, changes with the lengths.
TEST_F(GpuAttentionPieces, ACapturedGraphFollowsNewLengths) {
  const auto call = [](const char* kvlen, int seed) {
    return random_call(
        parse_problem(std::string("attention_decode:b=120,hq=8,hk=1,d=128,page=16,kvlen=") + kvlen +
                      ",seed=" + std::to_string(seed)));
  };
  // The first one has the most pages.
  const Call first = call("300x119+2000", 1);
  const DeviceCall gpu(first);
  const cuda::Captured graph([&] { gpu.launch(""); });
  for (const Call& next : {call("20x119+2000", 2), call("2000x2+1x118", 3), call("2000+150x119", 4),
                           call("1x90+2000+1x29", 5), call("20x119+2000", 6)}) {
    gpu.upload(next);
    for (int i = 0; i < 3; ++i) graph.replay();
    const Comparison comparison = Judge(next).compare(gpu.result());
    EXPECT_TRUE(comparison.ok) << comparison.failure;
  }
}

}  // namespace
}  // namespace hyla::testing
