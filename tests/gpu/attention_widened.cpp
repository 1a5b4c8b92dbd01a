// Prompts over caches of one byte a value, whose keys and values are widened into the workspace
// first: every dim, page size and mask, rows that are widened beside rows that are not, and
// workspaces with room for some rows or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using attention::RunParams;
using GpuAttentionWidened = Gpu;

// Rows from so many queries on, those of all heads of a group, are widened where there is room.
constexpr std::int64_t kWidenedQueries = 512;

// Bytes that widened keys and values take: of the keys that all queries of long rows see together.
std::int64_t widened_bytes(const ProblemSpec& spec) {
  const std::vector<std::int64_t> queries = row_lengths(spec), keys = kv_lengths(spec);
  const bool all = spec.mask == Mask::kCausal || spec.mask == Mask::kNone;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    if (queries[i] * (spec.hq / spec.hk) >= kWidenedQueries) tokens += all ? keys[i] : queries[i];
  }
  return tokens * spec.hk * spec.d * 2 * 2;
}

std::string first_choice(const std::string& problem) {
  const DeviceCall gpu(random_call(parse_problem(problem)));
  for (const Candidate& candidate : gpu.explain()) {
    if (candidate.supported) return candidate.implementation;
  }
  return {};
}

bool takes(const DeviceCall& gpu, const std::string& implementation) {
  const std::vector<Candidate> all = gpu.explain();
  return std::any_of(all.begin(), all.end(), [&](const Candidate& candidate) {
    return candidate.supported && candidate.implementation == implementation;
  });
}

// Results are right, and came by way of widened values: memory that was all ones holds at least
// as much else as they take. A few of their own bytes may be ones.
void check_widened(const std::string& problem, const CaseOptions& options) {
  const ProblemSpec spec = parse_problem(problem);
  const Call call = random_call(spec, options);
  check_call(problem, call);
  const DeviceCall gpu(call);
  ASSERT_TRUE(takes(gpu, "cuda_widened")) << problem;
  const std::size_t bytes = workspace_bytes(gpu.params(), gpu.context());
  RunParams params = std::get<RunParams>(gpu.params());
  params.impl = "cuda_widened";
  std::vector<std::byte> held(bytes);
  const cuda::Memory memory(cuda::allocate(bytes));
  cuda::fill(memory.get(), 0xff, bytes);
  attention::run(params, {memory.get(), bytes, gpu.context().device}, gpu.context());
  cuda::synchronize();
  cuda::download(held.data(), memory.get(), bytes);
  const auto ones = std::count(held.begin(), held.end(), std::byte{0xff});
  const std::int64_t written = static_cast<std::int64_t>(bytes) - ones;
  EXPECT_GT(widened_bytes(spec), 0) << problem;
  EXPECT_GT(written, widened_bytes(spec) * 15 / 16) << problem;
}

TEST_F(GpuAttentionWidened, EveryPageSizeAndDim) {
  std::uint64_t seed = 7000;
  for (const char* d : {"64", "72", "128", "256"}) {
    for (const char* types : {"io=bf16,kv=e4m3", "io=f16,kv=int8", "io=bf16,kv=int8"}) {
      for (const char* page : {seed % 2 == 0 ? "0" : "1", seed % 3 == 0 ? "7" : "64"}) {
        const std::string problem =
            std::string("attention_prefill:lens=70+0+130,kvlen=70+0+231,hq=8,hk=1,d=") + d + "," +
            types + ",page=" + page + ",seed=" + std::to_string(++seed);
        check_widened(problem, options_in_turn(seed));
      }
    }
  }
}

// A region begins at the first tile that a query sees.
TEST_F(GpuAttentionWidened, EveryMask) {
  std::uint64_t seed = 7100;
  for (const char* d : {"64", "256"}) {
    for (const char* mask :
         {"mask=none", "mask=window,window=1", "mask=window,window=80", "mask=window,window=129",
          "mask=chunked,window=80", "mask=chunked,window=333"}) {
      const std::string problem =
          std::string("attention_prefill:lens=140+120,kvlen=450+121,hq=4,hk=1,d=") + d + "," +
          mask + ",page=16,kv=e4m3,seed=" + std::to_string(++seed);
      CaseOptions options;
      options.extras = (seed % 2) != 0;
      check_widened(problem, options);
    }
  }
}

// Long rows are widened, the others are not, in one call; and items that are cut along the keys.
TEST_F(GpuAttentionWidened, SomeRows) {
  std::uint64_t seed = 7200;
  for (const char* rows :
       {"lens=100+20+70+0+31,kvlen=200+400+71+0+31", "lens=1x6+81+1x3+70+0+4,kvlen=300",
        "lens=80,kvlen=2100", "lens=64+64,kvlen=1500+1100"}) {
    for (const char* shape : {"d=64,kv=e4m3", "d=128,kv=int8,io=f16", "d=256,kv=e4m3"}) {
      ++seed;
      check_widened(std::string("attention_prefill:") + rows + ",hq=8,hk=1,page=16," + shape +
                        ",seed=" + std::to_string(seed),
                    options_in_turn(seed));
    }
  }
}

// With whatever room the workspace has, and whatever it held before.
TEST_F(GpuAttentionWidened, AnyRoom) {
  for (const char* shape : {"d=256,kv=e4m3", "d=64,kv=int8"}) {
    const std::string problem =
        std::string("attention_prefill:lens=100+130+80+101,kvlen=320+130+500+101,") +
        "hq=8,hk=1,page=16,seed=5," + shape;
    const Call call = random_call(parse_problem(problem));
    const Judge judge(call);
    const DeviceCall gpu(call);
    const auto& p = std::get<RunParams>(gpu.params());
    const std::size_t most = workspace_bytes(gpu.params(), gpu.context());
    const std::size_t token = 2 * static_cast<std::size_t>(p.q.shape[2] + p.out.shape[2] + 4);
    const std::size_t least = 4096;  // the schedule alone
    ASSERT_GT(most, 1200 * token);
    std::vector<std::size_t> rooms = {most, least};
    for (std::size_t less : {300, 700, 1000, 1300}) {
      if (less * token < most - least) rooms.push_back(most - less * token);
    }
    const cuda::Memory memory(cuda::allocate(most));
    for (const std::size_t bytes : rooms) {
      cuda::fill(memory.get(), 0xff, most);
      gpu.upload(call);
      RunParams limited = p;
      limited.impl = "cuda_widened";
      attention::run(limited, {memory.get(), bytes, gpu.context().device}, gpu.context());
      const Comparison comparison = judge.compare(gpu.result());
      EXPECT_TRUE(comparison.ok) << problem << " with " << bytes << " of " << most
                                 << " bytes: " << comparison.failure << " (error "
                                 << comparison.max_error << ", bound " << comparison.bound << ")";
    }
  }
}

// It costs launches that short prompts over short caches do not bring back.
TEST_F(GpuAttentionWidened, WhereItPays) {
  for (const char* short_prompts :
       {"attention_prefill:lens=200+33,hq=8,hk=2,d=128,kvlen=250,page=16,kv=int8",
        "attention_prefill:lens=160+70,hq=16,hk=2,d=256,kvlen=300,page=64,kv=e4m3",
        "attention_prefill:lens=128,hq=32,hk=8,d=64,kvlen=500,page=64,kv=e4m3"}) {
    EXPECT_EQ(first_choice(short_prompts), "cuda_prefill") << short_prompts;
  }
  for (const char* long_prompts :
       {"attention_prefill:lens=2048,hq=16,hk=2,d=256,page=64,kv=e4m3",
        "attention_prefill:lens=1024x2,hq=32,hk=8,d=128,kvlen=4096,page=64,kv=int8"}) {
    EXPECT_EQ(first_choice(long_prompts), "cuda_widened") << long_prompts;
  }
}

TEST_F(GpuAttentionWidened, SameBitsEveryTimeAndInGraphs) {
  for (const char* rows :
       {"lens=300,d=256,kv=e4m3", "lens=90+1+200,d=128,kv=int8", "lens=120+90,d=128,kv=e4m3"}) {
    const std::string problem = std::string("attention_prefill:hq=8,hk=1,page=16,seed=9,") + rows;
    CaseOptions options;
    options.shuffled = true;
    const Call call = random_call(parse_problem(problem), options);
    const DeviceCall gpu(call);
    gpu.launch("cuda_widened");
    const Call first = gpu.result();
    EXPECT_TRUE(Judge(call).compare(first).ok) << problem;
    const cuda::Captured graph([&] { gpu.launch("cuda_widened"); });
    for (int repeat = 0; repeat < 5; ++repeat) {
      gpu.upload(call);
      graph.replay();
      expect_same_bits(first, gpu.result(), problem);
    }
    for (int replay = 1; replay <= 3; ++replay) {
      const Call next = replay_call(parse_problem(problem), options, call, replay);
      gpu.upload(next);
      graph.replay();
      const Comparison comparison = Judge(next).compare(gpu.result());
      EXPECT_TRUE(comparison.ok) << problem << ", replay " << replay << ": " << comparison.failure;
    }
  }
}

// Lengths that change between replays move rows from one kernel to the other.
TEST_F(GpuAttentionWidened, ACapturedGraphFollowsNewLengths) {
  const auto call = [](const char* lens, const char* kvlen, int seed) {
    return random_call(
        parse_problem(std::string("attention_prefill:hq=8,hk=1,d=128,page=16,kv=e4m3,lens=") +
                      lens + ",kvlen=" + kvlen + ",seed=" + std::to_string(seed)));
  };
  const Call first = call("20+205+1+31", "200+230+5+200", 1);
  const DeviceCall gpu(first);
  const cuda::Captured graph([&] { gpu.launch("cuda_widened"); });
  for (const Call& next :
       {call("31+20+205+1", "200+200+230+5", 2), call("1+1+135+120", "1+5+230+200", 3),
        call("63+65+66+63", "230+65+129+130", 4), call("16+136+0+105", "230+201+0+130", 5)}) {
    gpu.upload(next);
    graph.replay();
    const Comparison comparison = Judge(next).compare(gpu.result());
    EXPECT_TRUE(comparison.ok) << comparison.failure;
  }
}

}  // namespace
}  // namespace hyla::testing
