// The judge must pass what is right and fail what is wrong: here results are spoiled on purpose.
#include "testing/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "testing/naive.h"
#include "testing/random_problem.h"

namespace hyla::testing {
namespace {

using ::testing::HasSubstr;

class ReferenceAgainstNaive : public ::testing::TestWithParam<const char*> {};

// Two implementations that share no code agree, on every kind of hostile input.
TEST_P(ReferenceAgainstNaive, Agree) {
  ProblemSpec spec = parse_problem(GetParam());
  for (std::int64_t seed = 0; seed < 12; ++seed) {
    spec.seed = seed;
    const auto options = seed == 0   ? CaseOptions::plain()
                         : seed == 1 ? CaseOptions::hostile()
                                     : CaseOptions::drawn(static_cast<std::uint64_t>(seed));
    const Call call = random_call(spec, options);
    const Judge judge(call, Exact::kIndependent);
    Call result = call;
    run(result, "reference");
    const Comparison c = judge.compare(result);
    EXPECT_TRUE(c.ok) << to_string(spec) << ": " << c.failure;
    // In chunks the same numbers come out, before operands are rounded.
    Call chunked = call;
    run_naive(chunked, {true, DType::kFloat32, true});
    EXPECT_TRUE(judge.compare(chunked).ok) << to_string(spec) << judge.compare(chunked).failure;
    // What the model allows: float32 always, operands of 16 bits where tensor cores are used.
    Call float32 = call, narrow = call;
    run_naive(float32, {false, DType::kFloat32});
    EXPECT_TRUE(judge.compare(float32).ok) << to_string(spec) << judge.compare(float32).failure;
    run_naive(narrow, {false, operand_dtype(call)});
    const Comparison allowed = Judge(call).compare(narrow);
    EXPECT_TRUE(allowed.ok) << to_string(spec) << ": " << allowed.failure;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, ReferenceAgainstNaive,
    ::testing::Values("gdn_decode:b=7,hq=2,hv=4,k=16,v=24",
                      "gdn_decode:b=6,hq=1,hv=3,k=8,v=8,io=f32,layout=kv,gate=log,beta=prob",
                      "gdn_decode:b=0,hq=1,hv=2,k=8,v=8", "gdn_decode:b=0",
                      "gdn_mtp:b=2,t=0,hq=2,hv=4",
                      "gdn_decode:b=9,hq=2,hv=2,k=32,v=16,state=bf16,gate=none,beta=none",
                      "gdn_mtp:b=5,t=4,hq=2,hv=4,k=16,v=24,mode=accepted",
                      "gdn_mtp:b=5,t=3,hq=1,hv=2,k=16,v=8,mode=all,state=f16,layout=kv",
                      "gdn_mtp:lens=3+1+0+4+2,hq=2,hv=2,k=8,v=16,io=f16,norm=0",
                      "gdn_prefill:lens=65+0+130+1,hq=1,hv=2,k=16,v=24,checkpoint=64",
                      "gdn_prefill:lens=9+40,hq=4,hk=2,hv=2,k=16,v=8,io=f32,gate=raw,norm=1",
                      "gdn_recurrence:lens=7+0+3+12,hq=2,hv=4,k=16,v=24",
                      "gdn_recurrence:lens=5x4,hq=1,hv=2,k=8,v=8,layout=vk,state=bf16,gate=log",
                      "conv_prefill:lens=5+0+1+9,hq=1,hv=2,k=8,v=8",
                      "conv_prefill:lens=2+3,hq=1,hv=1,k=8,v=8,width=2,io=f32,state=f32",
                      "conv_update:b=6,hq=1,hv=2,k=8,v=8,io=f16,state=f16",
                      "conv_update:b=4,t=3,hq=1,hv=2,k=8,v=8,width=3",
                      "conv_update:lens=2+0+3+1,hq=1,hv=2,k=8,v=8", "norm_gated_rms:b=5,hv=3,v=24",
                      "norm_gated_rms:b=3,hv=2,v=8,io=f32",
                      "attention_decode:b=3,hq=4,hk=2,d=16,kvlen=1+40+17,page=8",
                      "attention_decode:b=2,t=3,hq=2,hk=1,d=24,kvlen=33,page=0,io=f32,kv=f16",
                      "attention_decode:b=2,hq=2,hk=2,d=16,kvlen=20,page=3,kv=e4m3",
                      "attention_decode:b=2,hq=4,hk=2,d=32,kvlen=20,page=16,kv=int8,io=f16",
                      "attention_prefill:lens=7+0+20,hq=4,hk=2,d=16,page=4,mask=window,window=5",
                      "attention_prefill:lens=9+3,kvlen=30,hq=2,hk=2,d=8,mask=chunked,window=8",
                      "attention_prefill:lens=6,hq=2,hk=1,d=16,page=0,mask=none",
                      "attention_append:lens=3+0+9,kvlen=20,hk=2,d=16,page=4,rope=halves",
                      "attention_append:b=3,kvlen=9,hk=2,d=32,page=0,kv=e4m3,rope=pairs",
                      "attention_append:lens=5+1,hk=2,d=24,kv=e4m3,scales=given",
                      "attention_append:lens=5+1,hk=1,d=24,kv=int8,io=f32",
                      "attention_append:lens=3+0+9,kvlen=20,hk=2,d=16,page=4,rope=halves,by=slots",
                      "attention_append:lens=5+1,hk=2,d=24,page=0,kv=int8,by=slots",
                      "attention_merge:b=7,hq=3,d=24", "attention_merge:b=5,hq=2,d=8,io=f32",
                      "attention_merge:b=6,hq=2,d=16,io=f16,in_place=1"));

struct Spoiled {
  const char* tensor;
  void (*spoil)(const TensorView&);
  const char* says;
};

class SpoiledResult : public ::testing::TestWithParam<Spoiled> {};

// The first element that was computed, not one that stays poison.
std::int64_t computed(const TensorView& view) {
  std::int64_t found = -1;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    if (found < 0 && !is_poison(view, offset)) found = offset;
  });
  return found;
}

std::int64_t untouched(const TensorView& view) {
  std::int64_t found = -1;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    if (found < 0 && is_poison(view, offset)) found = offset;
  });
  return found;
}

TEST_P(SpoiledResult, IsSeen) {
  const ProblemSpec spec = parse_problem("gdn_decode:b=8,hq=2,hv=4,k=16,v=24,io=f32,seed=5");
  const Call call = random_call(spec, CaseOptions::hostile());
  const Judge judge(call);
  Call result = call;
  run(result);
  ASSERT_TRUE(judge.compare(result).ok);
  for (const NamedTensor& t : tensors(result)) {
    if (t.name == GetParam().tensor) GetParam().spoil(t.view);
  }
  const Comparison c = judge.compare(result);
  EXPECT_FALSE(c.ok);
  EXPECT_THAT(c.failure, HasSubstr(GetParam().says));
}

void bump(const TensorView& view) {  // far more than float32 rounding, far less than the value
  const std::int64_t at = computed(view);
  store_element(view, at, load_element(view, at) * (1 + 1e-3) + 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, SpoiledResult,
    ::testing::Values(
        Spoiled{"out", bump, "allowed error"}, Spoiled{"state", bump, "allowed error"},
        Spoiled{"out", [](const TensorView& v) { store_element(v, computed(v), std::nan("")); },
                "got NaN"},
        Spoiled{"state", [](const TensorView& v) { store_element(v, computed(v), INFINITY); },
                "got inf"},
        Spoiled{"out", [](const TensorView& v) { store_element(v, untouched(v), 0); },
                "nothing should be"},
        Spoiled{"state", [](const TensorView& v) { store_element(v, untouched(v), 1); },
                "nothing should be"},
        Spoiled{"out", [](const TensorView& v) { store_element(v, -1, 0); }, "before its first"},
        Spoiled{"q", [](const TensorView& v) { store_element(v, computed(v), 3); },
                "an input was changed"},
        Spoiled{"read_columns", [](const TensorView& v) { store_element(v, 0, 77); },
                "an input was changed"}));

TEST(HalfUlp, IsHalfTheDistanceToTheNextNumber) {
  EXPECT_EQ(half_ulp(DType::kFloat32, 1.0), 0x1p-24);
  EXPECT_EQ(half_ulp(DType::kFloat32, 1.999), 0x1p-24);
  EXPECT_EQ(half_ulp(DType::kFloat32, -2.0), 0x1p-23);
  EXPECT_EQ(half_ulp(DType::kBFloat16, 1.0), 0x1p-8);
  EXPECT_EQ(half_ulp(DType::kFloat16, 1.0), 0x1p-11);
  EXPECT_EQ(half_ulp(DType::kFloat16, 0.0), 0x1p-25);  // subnormals step by 2^-24
  EXPECT_EQ(half_ulp(DType::kFloat16, 1e-7), 0x1p-25);
}

}  // namespace
}  // namespace hyla::testing
