// A soft cap changes small logits hardly, and no digit of them is lost on the way: an error of a
// logit is one of its weight, and values that cancel each other make it visible.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/check_call.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

constexpr std::int64_t kDim = 8;
constexpr double kSoftcap = 30.0;

std::vector<float> samples(std::int64_t heads) {
  std::vector<float> x;
  for (float magnitude = 0x1p-90f; magnitude < 2000.0f; magnitude *= 1.05f) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  while (static_cast<std::int64_t>(x.size()) % heads != 0) x.push_back(0.0f);
  return x;
}

// Rows of one key, which is 1: the LSE of a query is its capped logit.
class Softcap : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Softcap, KeepsTheDigitsOfSmallLogits) {
  const std::int64_t heads = GetParam();
  const std::vector<float> x = samples(heads);
  const auto rows = static_cast<std::int64_t>(x.size()) / heads;
  std::vector<float> q(x.size() * kDim, 0.0f), k(static_cast<std::size_t>(rows * kDim), 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) q[i * kDim] = x[i];
  for (std::size_t i = 0; i < k.size(); i += kDim) k[i] = 1.0f;
  std::vector<float> out(q.size()), lse(x.size());
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(rows) + 1), ones(offsets.size(), 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  attention::RunParams p;
  p.q = TensorView::dense(q.data(), DType::kFloat32, {rows, heads, kDim});
  p.out = TensorView::dense(out.data(), DType::kFloat32, {rows, heads, kDim});
  p.lse = TensorView::dense(lse.data(), DType::kFloat32, {rows, heads});
  const TensorView cache = TensorView::dense(k.data(), DType::kFloat32, {rows, 1, 1, kDim});
  p.cache = attention::KvCache::dense(cache, cache);
  p.kv_lengths = TensorView::dense(ones.data(), DType::kInt64, {rows});
  p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {rows + 1});
  p.softcap = kSoftcap;
  p.scale = 1.0;
  for (const Candidate& candidate : explain(p)) {
    if (!candidate.supported) continue;
    lse.assign(lse.size(), std::numeric_limits<float>::quiet_NaN());
    p.impl = candidate.implementation.c_str();
    attention::run(p);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Roundoffs: 2 of x / 30, 8 of the tangent, 3 of its factor 30 / ln 2, 2 of ln 2, and one
      // more.
      const double want = kSoftcap * std::tanh(x[i] / kSoftcap);
      ASSERT_LE(std::fabs(lse[i] - want), 16 * 0x1p-24 * std::fabs(want))
          << x[i] << " by " << candidate.implementation;
    }
  }
}

// Columns of a stream of 4, 8 and 16, and of a block.
INSTANTIATE_TEST_SUITE_P(Columns, Softcap, ::testing::Values(4, 8, 16, 32));

// A plain float32 softmax is within these bounds, so that a kernel has to be.
TEST(SoftcapOfManyKeys, IsNoWorseThanAPlainSoftmax) {
  for (const char* problem :
       {"attention_decode:b=4,t=2,hq=2,hk=1,d=8,kvlen=343,page=32,io=f32,kv=e4m3,mask=none,"
        "seed=909531",
        "attention_prefill:lens=3,hq=6,hk=2,d=8,kvlen=172,page=64,io=f32,kv=f16,seed=483953",
        "attention_prefill:lens=40,hq=6,hk=2,d=8,kvlen=172,page=64,io=f32,kv=f16,seed=3"}) {
    for (int seed = 0; seed < 4; ++seed) {
      testing::ProblemSpec spec = testing::parse_problem(problem);
      spec.seed += seed;
      const testing::Call call = random_call(spec, testing::CaseOptions::hostile());
      ASSERT_GT(std::get<attention::RunParams>(call.params).softcap, 0);
      check_call(problem, call);
    }
  }
}

// Caps that no float32 holds change nothing, and scales that vanish make all keys alike.
TEST(SoftcapOfManyKeys, MayBeBeyondFloat32) {
  for (const double cap : {0.0, 30.0, 1e30, 1e38, 1e60}) {
    for (const double scale : {0.3, 1e-20, 1e-44, 1e-60, 0.0}) {
      const char* problem = "attention_prefill:lens=3+40,kvlen=9+90,hq=4,hk=2,d=64,page=16";
      testing::Call call = random_call(testing::parse_problem(problem), testing::CaseOptions{});
      auto& p = std::get<attention::RunParams>(call.params);
      p.softcap = cap;
      p.scale = scale;
      check_call(problem, call);
    }
  }
}

}  // namespace
}  // namespace hyla::cpu_test
