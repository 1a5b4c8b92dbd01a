// Calls that hold rows of many queries and rows of few, and rows whose bits do not depend on their
// neighbours.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using attention::RunParams;
using GpuAttentionMixed = Gpu;

std::string first_choice(const DeviceCall& gpu) {
  for (const Candidate& candidate : gpu.explain()) {
    if (candidate.supported) return candidate.implementation;
  }
  return {};
}

// Every way to share the rows among kernels takes the call, so that all of them are checked.
void expect_all_ways(const DeviceCall& gpu, const std::string& problem) {
  std::set<std::string> names;
  for (const Candidate& candidate : gpu.explain()) {
    if (candidate.supported) names.insert(candidate.implementation);
  }
  for (const char* name : {"cuda_mixed", "cuda_wide", "cuda_prefill"}) {
    EXPECT_TRUE(names.contains(name)) << problem << " is not taken by " << name;
  }
}

const std::vector<std::string> kMixtures = {
    "attention_prefill:lens=1x6+41+1x3+70+0+4,kvlen=600+1+17+64+200+31+41+2+77+5+100+16+133,",
    "attention_prefill:lens=1x6+41+1x3+70+0+4,kvlen=300+1+17+64+200+31+41+2+77+5+100+16+133,",
    "attention_prefill:lens=16+17+1+40,kvlen=16+60+900+41,"};

TEST_F(GpuAttentionMixed, LongAndShortRows) {
  std::uint64_t seed = 6000;
  for (const std::string& rows : kMixtures) {
    for (const char* heads : {"hq=8,hk=2", "hq=20,hk=1"}) {
      for (const char* shape : {"d=64,page=16", "d=256,page=64", "d=128,io=f16,kv=f16,page=0",
                                "d=128,page=1,mask=window,window=50"}) {
        const std::string problem = rows + heads + "," + shape + ",seed=" + std::to_string(seed);
        expect_all_ways(DeviceCall(random_call(parse_problem(problem))), problem);
        EXPECT_GE(check_all(problem, CaseOptions{}), 4) << problem;
        // Unaligned tensors leave the generic kernel alone.
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

// By every implementation that takes them.
TEST_F(GpuAttentionMixed, SameBitsEveryTime) {
  for (const std::string& rows : kMixtures) {
    const Call call = random_call(parse_problem(rows + "hq=16,hk=2,d=256,page=16,seed=3"));
    const DeviceCall gpu(call);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      const auto bits = [&] {
        gpu.upload(call);
        gpu.launch(candidate.implementation);
        const Call result = gpu.result();
        const TensorView& out = std::get<RunParams>(result.params).out;
        const auto* from = static_cast<const std::byte*>(out.data);
        return std::vector<std::byte>(
            from, from + static_cast<std::size_t>(out.shape[0] * out.strides[0]) * 2);
      };
      const std::vector<std::byte> first = bits();
      for (int repeat = 0; repeat < 4; ++repeat) {
        EXPECT_EQ(first, bits()) << rows << candidate.implementation;
      }
    }
  }
}

struct Way {
  const char* by;
  const char* longest;  // row; items of the longer ones are cut
};

TEST_F(GpuAttentionMixed, ACapturedGraphFollowsNewLengths) {
  for (const auto& [by, longest_row] :
       {Way{"", "200"}, Way{"cuda_prefill", "200"}, Way{"cuda_prefill", "1700"},
        Way{"cuda_mixed", "700"}, Way{"cuda_mixed", "1700"}, Way{"cuda_wide", "700"}}) {
    const std::string longest = longest_row;
    const auto call = [&](const char* lens, const std::string& kvlen, int seed) {
      return random_call(
          parse_problem(std::string("attention_prefill:hq=8,hk=1,d=128,page=16,lens=") + lens +
                        ",kvlen=" + kvlen + ",seed=" + std::to_string(seed)));
    };
    const Call first = call("1+100+1+31", longest + "+130+5+" + longest, 1);
    const DeviceCall gpu(first);
    const cuda::Captured graph([&] { gpu.launch(by); });
    for (const Call& next : {call("31+1+100+1", longest + "+" + longest + "+130+5", 2),
                             call("1+1+130+1", "1+5+" + longest + "+200", 3),
                             call("33+34+33+33", longest + "+34+129+130", 4),
                             call("16+100+0+17", longest + "+101+0+130", 5)}) {
      gpu.upload(next);
      graph.replay();
      const Comparison comparison = Judge(next).compare(gpu.result());
      EXPECT_TRUE(comparison.ok) << by << ": " << comparison.failure;
    }
  }
}

// The row's queries in a call of its own, with the same tensors.
Call alone(const Call& all, std::int64_t row) {
  Call one = all;
  auto& p = std::get<RunParams>(one.params);
  p.starts = p.starts.slice(0, row, 1);
  p.lengths = p.lengths.slice(0, row, 1);
  p.kv_lengths = p.kv_lengths.slice(0, row, 1);
  p.cache.page_table = p.cache.page_table.slice(0, row, 1);
  return one;
}

// Rows of one query, drafts and prompts, few queries behind keys that would be cut otherwise.
TEST_F(GpuAttentionMixed, ARowsBitsDoNotDependOnItsNeighbours) {
  CaseOptions options;
  options.starts = true;
  int seed = 6500;
  for (const char* rows : {"attention_prefill:lens=1+20+3+1+70+16,kvlen=300+90+77+700+71+150,",
                           "attention_prefill:lens=4+4+1,kvlen=1100+20+400,",
                           "attention_prefill:lens=20+150,kvlen=2100+150,",
                           "attention_prefill:lens=1+1+1+2,kvlen=5000+700+1100+40000,"}) {
    for (const char* shape :
         {"hq=8,hk=1,d=256", "hq=8,hk=4,d=128", "hq=8,hk=1,d=256,kv=e4m3", "hq=8,hk=1,d=128,page=1",
          "hq=4,hk=2,d=64,mask=window,window=200", "hq=20,hk=2,d=64",
          "hq=3,hk=1,d=64,kv=int8,page=3", "hq=4,hk=2,d=128,kv=e4m3"}) {
      const std::string problem = std::string(rows) + shape + ",seed=" + std::to_string(++seed);
      Call all = random_call(parse_problem(problem), options);
      all.context.batch_invariant = true;
      const DeviceCall batch(all);
      EXPECT_EQ(first_choice(batch), "cuda_invariant") << problem;
      batch.launch("");
      const Call together = batch.result();
      const Comparison comparison = Judge(all).compare(together);
      EXPECT_TRUE(comparison.ok) << problem << ": " << comparison.failure;
      const auto& p = std::get<RunParams>(all.params);
      const std::int64_t width = p.out.shape[1] * p.out.shape[2];
      for (std::int64_t row = 0; row < p.starts.shape[0]; ++row) {
        const Call single = alone(all, row);
        const DeviceCall gpu(single);
        gpu.launch("");
        const Call apart = gpu.result();
        const auto start =
            static_cast<std::int64_t>(load_element(p.starts, row * p.starts.strides[0]));
        const auto length =
            static_cast<std::int64_t>(load_element(p.lengths, row * p.lengths.strides[0]));
        const auto bytes = static_cast<std::size_t>(length * width) * size_of(p.out.dtype);
        const auto own = [&](const Call& call) {
          return static_cast<const std::byte*>(std::get<RunParams>(call.params).out.data) +
                 static_cast<std::size_t>(start * width) * size_of(p.out.dtype);
        };
        EXPECT_EQ(std::memcmp(own(together), own(apart), bytes), 0) << problem << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
