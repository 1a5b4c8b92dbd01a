// Prefill that is told the lengths of its sequences (host_lengths): they choose the kernels and
// decide nothing that is computed. Right or wrong, every implementation agrees with the reference,
// those whose bits do not depend on the plan have the bits of a call that was told nothing, and a
// captured graph replays with other lengths than it was told.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefillTold = Gpu;
using Numbers = std::vector<std::int64_t>;

// One sequence much longer than the others, several such, some without tokens, all alike, and many;
// dims and heads for every implementation.
const std::vector<std::string> kProblems = {
    "gdn_prefill:lens=1000+30x5+64+0,hq=1,hv=2,seed=71",
    "gdn_prefill:lens=0+5+600+64x9+700+1,hq=2,hv=2,norm=1,gate=raw,beta=logit,seed=72",
    "gdn_prefill:lens=300x4,hq=4,hk=1,hv=1,state=bf16,seed=73",
    "gdn_prefill:lens=1+130+7x30+64,hq=1,hv=2,io=f16,layout=kv,seed=74",
    "gdn_prefill:lens=700+0+65,hq=1,hv=2,k=64,v=64,seed=75",
    "gdn_prefill:lens=70+260+1,hq=1,hv=1,k=256,v=256,seed=76",
    "gdn_prefill:lens=20+3,hq=1,hv=1,io=f32,seed=77",
};

// Their bits do not depend on the plan. Not cuda_segments and cuda_relay, whose segments are the
// plan's, and not cuda_split with K above 128.
bool keeps_bits(const std::string& impl, const gdn::PrefillParams& p) {
  static const std::set<std::string> kAlways = {"cuda_fused", "cuda_steps", "cuda_block",
                                                "cuda_vk",    "cuda_kv",    "cuda_tokens"};
  return kAlways.count(impl) > 0 || (impl == "cuda_split" && p.k.shape[2] <= 128);
}

gdn::PrefillParams& params(Call& call) { return std::get<gdn::PrefillParams>(call.params); }

// The call with these lengths told, in a buffer that all calls have: only its numbers differ.
Call told(const Call& call, const Numbers& lengths, DType dtype, std::int64_t stride) {
  Call result = call;
  const auto rows = static_cast<std::int64_t>(lengths.size());
  result.buffers.emplace_back("host_lengths", dtype, std::vector{rows}, std::vector{stride});
  Buffer& buffer = result.buffers.back();
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    if (dtype == DType::kInt64) {
      reinterpret_cast<std::int64_t*>(buffer.data())[i * stride] = length;
    } else {
      reinterpret_cast<std::int32_t*>(buffer.data())[i * stride] =
          static_cast<std::int32_t>(std::min<std::int64_t>(length, 1 << 30));
    }
  }
  params(result).host_lengths = buffer.view();
  return result;
}

struct Saying {
  std::string what;
  Numbers lengths;
};

std::vector<Saying> sayings(const Numbers& lengths) {
  Numbers shuffled(lengths.rbegin(), lengths.rend()), shorter = lengths, longer = lengths;
  std::rotate(shuffled.begin(), shuffled.begin() + std::ssize(shuffled) / 2, shuffled.end());
  for (std::int64_t& n : shorter) n /= 3;
  for (std::int64_t& n : longer) n = 5 * n + 7;
  const std::size_t rows = lengths.size();
  Numbers one(rows, 1);
  one.front() = 100000;
  return {{"right", lengths},
          {"too short", shorter},
          {"too long", longer},
          {"shuffled", shuffled},
          {"none", Numbers(rows, 0)},
          {"one of all", one},
          {"beyond everything", Numbers(rows, std::numeric_limits<std::int64_t>::max())}};
}

void expect_good(const Judge& judge, const Call& result, const std::string& what) {
  const Comparison comparison = judge.compare(result);
  EXPECT_TRUE(comparison.ok) << what << ": " << comparison.failure;
}

TEST_F(GpuPrefillTold, RightOrWrongItChangesNoResult) {
  for (const std::string& problem : kProblems) {
    const ProblemSpec spec = parse_problem(problem + ",longest=0");
    const Call call = random_call(spec);
    const Judge judge(call);
    const DeviceCall plain(call);
    std::map<std::string, Call> untold;  // results by implementation, judged
    const auto untold_by = [&](const std::string& impl) -> const Call& {
      if (untold.count(impl) == 0) {
        plain.upload(call);
        plain.launch(impl);
        untold.emplace(impl, plain.result());
        expect_good(judge, untold.at(impl), problem + ", " + impl);
      }
      return untold.at(impl);
    };
    int index = 0;
    for (const Saying& saying : sayings(row_lengths(spec))) {
      const DType dtype = ++index % 2 == 0 ? DType::kInt32 : DType::kInt64;
      const Call with = told(call, saying.lengths, dtype, 1 + index % 3);
      const DeviceCall gpu(with);
      const auto result_by = [&](const std::string& impl) {
        gpu.upload(with);
        gpu.launch(impl);
        Call result = gpu.result();
        result.buffers.pop_back();
        params(result).host_lengths = {};
        return result;
      };
      int ran = 0;
      for (const Candidate& candidate : gpu.explain()) {
        const std::string& impl = candidate.implementation;
        if (!candidate.supported) continue;
        const std::string what = problem + ", told " + saying.what + ", " + impl;
        Call result = result_by(impl);
        if (keeps_bits(impl, params(result))) {
          expect_same_bits(untold_by(impl), result, what);
        } else {
          expect_good(judge, result, what);
        }
        ++ran;
      }
      EXPECT_GT(ran, 0) << problem;
      if (saying.what == "right") expect_good(judge, result_by(""), problem + ", told, chosen");
    }
  }
}

// The lengths of the replays are not those that the call was told when it was captured.
TEST_F(GpuPrefillTold, AGraphReplaysWithOtherLengths) {
  for (const std::size_t i : {0, 1, 3}) {
    check_replays(kProblems[i] + ",told=1", options_in_turn(i + 1));
  }
}

// It has to be on the host, and is refused by name if it is not.
TEST_F(GpuPrefillTold, OnTheDeviceItIsRefused) {
  const Call call = random_call(parse_problem(kProblems.front() + ",told=1"));
  const DeviceCall gpu(call);
  gdn::PrefillParams p = std::get<gdn::PrefillParams>(gpu.params());
  p.host_lengths = p.cu_seqlens.slice(0, 0, p.host_lengths.shape[0]);
  try {
    gdn::prefill(p, {}, gpu.context());
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "host_lengths") << error.what();
  }
}

}  // namespace
}  // namespace hyla::testing
