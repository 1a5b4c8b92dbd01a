// Every CPU implementation that this machine can run, forced by name, against the float64
// reference.
#include <gtest/gtest.h>

#include <string>

#include "cpu/check_call.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

using testing::CaseOptions;

int check_all(const std::string& problem, const CaseOptions& options) {
  return check_call(problem, random_call(testing::parse_problem(problem), options));
}

class CpuAgreement : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuAgreement, OnFriendlyHostileAndDrawnTensors) {
  EXPECT_GT(check_all(GetParam(), CaseOptions::plain()), 0);
  EXPECT_GT(check_all(GetParam(), CaseOptions::hostile()), 0);
  // Other arguments for every problem.
  const testing::Random draw(1, GetParam());
  for (int i = 0; i < 3; ++i) check_all(GetParam(), CaseOptions::drawn(draw.bits(i) >> 1));
}

// More than 16 MiB of states, which are written past the caches.
TEST(CpuMtp, AgreesWhereStatesAreStreamed) {
  for (const char* problem : {"gdn_mtp:b=9,t=8,hq=2,hv=4,mode=all",
                              "gdn_mtp:b=9,t=8,hq=2,hv=8,mode=all,state=bf16,layout=kv"}) {
    EXPECT_GT(check_all(problem, CaseOptions::plain()), 0) << problem;
  }
}

// More than 16 MiB of outputs, which some processors are told to write past the caches.
TEST(CpuConv, AgreesWhereOutputsAreStreamed) {
  EXPECT_GT(check_all("conv_prefill:lens=1030+3+6", CaseOptions::plain()), 0);
  EXPECT_GT(check_all("conv_prefill:lens=1030+3+6", CaseOptions::hostile()), 0);
}

// Dims on both sides of every vector length, whole and broken groups of value rows, all dtypes.
INSTANTIATE_TEST_SUITE_P(
    Decode, CpuAgreement,
    ::testing::Values("gdn_decode:b=3,hq=1,hv=2", "gdn_decode:b=3,hq=1,hv=2,state=bf16",
                      "gdn_decode:b=2,hq=1,hv=2,state=f16,io=f16,layout=kv",
                      "gdn_decode:b=2,hq=1,hv=2,state=bf16,io=f32,layout=vk",
                      "gdn_decode:b=2,hq=2,hv=2,k=8,v=8,io=f32",
                      "gdn_decode:b=2,hq=2,hv=2,k=8,v=8,layout=kv",
                      "gdn_decode:b=2,hq=1,hv=3,k=40,v=24,state=bf16,gate=log",
                      "gdn_decode:b=2,hq=1,hv=3,k=24,v=40,state=f16,layout=kv,gate=linear",
                      "gdn_decode:b=2,hq=1,hv=2,k=64,v=136,beta=prob,norm=0",
                      "gdn_decode:b=1,hq=1,hv=1,k=256,v=256,gate=none,beta=none",
                      "gdn_decode:b=1,hq=1,hv=1,k=256,v=200,layout=kv"));
INSTANTIATE_TEST_SUITE_P(
    Mtp, CpuAgreement,
    ::testing::Values("gdn_mtp:b=2,t=2,hq=1,hv=2", "gdn_mtp:b=2,t=3,hq=1,hv=2,state=bf16",
                      "gdn_mtp:b=2,t=4,hq=1,hv=2,layout=kv", "gdn_mtp:b=2,t=20,hq=1,hv=2",
                      "gdn_mtp:b=2,t=17,hq=1,hv=2,state=bf16",
                      "gdn_mtp:b=3,t=18,hq=1,hv=2,k=40,v=24,mode=accepted",
                      "gdn_mtp:b=2,t=8,hq=1,hv=2,mode=accepted",
                      "gdn_mtp:b=2,t=8,hq=1,hv=2,mode=accepted,layout=kv,state=f16",
                      "gdn_mtp:b=2,t=5,hq=1,hv=2,mode=all,k=64,v=40",
                      "gdn_mtp:b=2,t=5,hq=1,hv=2,mode=all,k=40,v=64,layout=kv,state=bf16",
                      "gdn_mtp:lens=3+1+0+6+8+9+2,hq=1,hv=2,k=40,v=24,io=f16",
                      "gdn_mtp:lens=3+1+0+6+8+9+2,hq=1,hv=2,k=24,v=72,io=f32,layout=kv"));
INSTANTIATE_TEST_SUITE_P(
    Recurrence, CpuAgreement,
    ::testing::Values("gdn_recurrence:lens=7+0+33+1,hq=1,hv=2,k=64,v=64",
                      "gdn_recurrence:lens=5+17,hq=1,hv=2,layout=vk,state=bf16",
                      "gdn_recurrence:lens=9+8,hq=2,hv=2,k=40,v=24,io=f32,gate=raw,beta=logit"));
INSTANTIATE_TEST_SUITE_P(
    Prefill, CpuAgreement,
    ::testing::Values("gdn_prefill:lens=65+0+33+1,hq=1,hv=2,checkpoint=64",
                      "gdn_prefill:lens=1+8+0+3+40+2,hq=1,hv=2,k=64,v=64",
                      "gdn_prefill:lens=5+8,hq=1,hv=2,layout=kv,state=bf16,norm=1",
                      "gdn_prefill:lens=40+32,hq=1,hv=2,layout=kv,state=bf16",
                      "gdn_prefill:lens=31+7,hq=2,hk=1,hv=1,k=40,v=24,io=f16,state=f16",
                      "gdn_prefill:lens=70,hq=1,hv=1,k=24,v=40,io=f32,layout=kv,norm=1",
                      "gdn_prefill:lens=70,hq=1,hv=6,k=16,v=8,gate=raw,beta=logit",
                      "gdn_prefill:lens=34,hq=1,hv=1,k=256,v=256,io=f32",
                      "gdn_prefill:lens=34,hq=1,hv=1,k=256,v=200,norm=1"));
// Whole and broken vectors and blocks of 256 channels, all dtypes, rows shorter than a window.
INSTANTIATE_TEST_SUITE_P(
    Conv, CpuAgreement,
    ::testing::Values("conv_prefill:lens=7+0+33+1,hq=1,hv=1,k=8,v=24",
                      "conv_prefill:lens=5+2,hq=2,hv=4,k=64,v=72,io=f32,state=f32",
                      "conv_prefill:lens=9+4+3,hq=1,hv=1,k=8,v=56,width=3,io=f16,state=f16",
                      "conv_prefill:lens=6+1,hq=1,hv=1,k=128,v=8,width=2,state=f32",
                      "conv_prefill:lens=21+8+4,hq=1,hv=2,k=32,v=40",
                      "conv_update:b=3,hq=1,hv=1,k=8,v=24", "conv_update:b=3,hq=1,hv=2,k=32,v=64",
                      "conv_update:b=3,hq=1,hv=1,k=32,v=32,width=3,io=f16,state=f16",
                      "conv_update:b=5,hq=2,hv=4,k=64,v=72,io=f32,state=f32",
                      "conv_update:b=4,t=3,hq=1,hv=1,k=8,v=56,width=3,io=f16,state=f16",
                      "conv_update:lens=5+0+1+2,hq=1,hv=1,k=128,v=8,width=2,state=f32"));
INSTANTIATE_TEST_SUITE_P(Norm, CpuAgreement,
                         ::testing::Values("norm_gated_rms:b=3,hv=2,v=128",
                                           "norm_gated_rms:b=5,hv=3,v=8,io=f32",
                                           "norm_gated_rms:b=2,hv=2,v=72,io=f16",
                                           "norm_gated_rms:b=1,hv=1,v=256"));
// Caches of every kind and dtype; rows that are cut along the keys and blocks of queries, both with
// ends that fill no vector, no block of keys and no page.
INSTANTIATE_TEST_SUITE_P(
    Attention, CpuAgreement,
    ::testing::Values(
        "attention_decode:b=3,hq=8,hk=2,d=128,kvlen=1+1200+97",
        "attention_decode:b=12,hq=8,hk=2,d=64,kvlen=40x3+1+1030+7+90x6,page=16",
        "attention_decode:b=2,hq=6,hk=2,d=256,kvlen=1100,page=16,io=f16,kv=f16",
        "attention_decode:b=2,hq=8,hk=1,d=64,kvlen=530,page=64,kv=e4m3",
        "attention_decode:b=2,t=4,hq=4,hk=2,d=40,kvlen=129,page=0,kv=int8,io=f16",
        "attention_decode:b=2,t=3,hq=12,hk=1,d=72,kvlen=600,page=0,io=f32,kv=bf16",
        "attention_decode:b=3,hq=2,hk=2,d=32,kvlen=33+15+16,page=0",
        "attention_decode:b=3,hq=8,hk=2,d=64,kvlen=330+15+16,io=f32,kv=f32",
        "attention_decode:b=2,hq=12,hk=1,d=128,kvlen=70,page=0,kv=f32",
        "attention_decode:b=1,hq=24,hk=6,d=128,kvlen=530,page=16",
        // Heads that go together: by twos, and three of them.
        "attention_decode:b=3,hq=32,hk=4,d=64,kvlen=330+15+16,page=16,threads=1",
        "attention_decode:b=2,hq=14,hk=2,d=128,kvlen=70+129,page=16,kv=e4m3,threads=1",
        "attention_decode:b=3,hq=24,hk=3,d=64,kvlen=130+15+16,page=64,threads=1",
        "attention_decode:b=2,t=2,hq=12,hk=2,d=96,kvlen=50+2,page=5",
        "attention_decode:b=2,t=2,hq=8,hk=1,d=64,kvlen=540+2,kv=int8",
        "attention_decode:b=2,t=5,hq=8,hk=2,d=64,kvlen=540+33,page=32,kv=e4m3",
        "attention_prefill:lens=40+0+90+1,hq=4,hk=2,d=64,mask=window,window=33",
        "attention_prefill:lens=70,hq=2,hk=1,d=8,mask=chunked,window=24,io=f32",
        "attention_prefill:lens=33+5,hq=2,hk=2,d=136,mask=none,page=0",
        "attention_prefill:lens=33+5,hq=4,hk=2,d=72,io=f32,kv=f32",
        "attention_decode:b=2,t=4,hq=16,hk=2,d=64,kvlen=1100+3",
        "attention_decode:b=2,t=2,hq=8,hk=1,d=64,kvlen=100+1",
        "attention_prefill:lens=300,hq=8,hk=2,d=64",
        "attention_prefill:lens=70,kvlen=40,hq=8,hk=1,d=96,page=5",
        "attention_prefill:lens=30+8,kvlen=100,hq=4,hk=4,d=64,page=7,io=f32,kv=f16"));

// Copies, conversions, both rotations with rests of vectors, every kind of quantisation.
INSTANTIATE_TEST_SUITE_P(
    Append, CpuAgreement,
    ::testing::Values(
        "attention_append:lens=7+0+1,kvlen=20,hk=3,d=64",
        "attention_append:lens=7+3,kvlen=20,hk=2,d=40,page=0,io=f16,kv=f16",
        "attention_append:lens=5,kvlen=9,hk=2,d=128,io=f16,kv=bf16",
        "attention_append:lens=5,kvlen=9,hk=2,d=24,rope=pairs,kv=f32",
        "attention_append:lens=5+2,kvlen=9,hk=2,d=72,page=3,io=f32,kv=bf16",
        "attention_append:lens=6+2,kvlen=40,hk=2,d=128,rope=halves",
        "attention_append:lens=6,kvlen=40,hk=1,d=256,rope=pairs,io=f16,kv=f16",
        "attention_append:lens=6,kvlen=40,hk=2,d=24,rope=halves,io=f32,kv=f16",
        "attention_append:b=3,t=2,kvlen=20,hk=2,d=64,page=7,kv=e4m3",
        "attention_append:b=3,t=2,kvlen=20,hk=2,d=72,rope=halves,kv=e4m3,io=f32",
        "attention_append:b=2,t=2,kvlen=20,hk=2,d=72,kv=int8,io=f16",
        "attention_append:b=2,t=3,kvlen=20,hk=2,d=64,kv=e4m3,scales=given",
        "attention_append:lens=6+2,kvlen=40,hk=2,d=72,rope=halves,kv=int8,scales=given",
        "attention_append:b=2,t=3,kvlen=20,hk=2,d=256,rope=pairs,kv=int8"));

// Slots of every kind of cache; in runs of words tokens are left out.
INSTANTIATE_TEST_SUITE_P(
    AppendBySlots, CpuAgreement,
    ::testing::Values("attention_append:lens=7+0+1,kvlen=20,hk=3,d=64,by=slots",
                      "attention_append:lens=7+3,kvlen=20,hk=2,d=40,page=0,io=f16,kv=f16,by=slots",
                      "attention_append:lens=26+2,kvlen=40,hk=2,d=128,rope=halves,by=slots",
                      "attention_append:lens=26+2,kvlen=40,hk=1,d=256,rope=pairs,kv=int8,by=slots",
                      "attention_append:lens=26+9,kvlen=40,hk=2,d=64,page=7,kv=e4m3,by=slots",
                      "attention_append:b=3,t=9,kvlen=20,hk=2,d=128,page=1,kv=int8,by=slots",
                      "attention_append:b=2,t=3,kvlen=20,hk=2,d=64,kv=e4m3,scales=given,by=slots"));

// Whole and broken vectors, all dtypes, rows longer than a block.
INSTANTIATE_TEST_SUITE_P(Merge, CpuAgreement,
                         ::testing::Values("attention_merge:b=9,hq=4,d=128",
                                           "attention_merge:b=9,hq=4,d=64,io=f16",
                                           "attention_merge:b=9,hq=4,d=256,io=f32",
                                           "attention_merge:b=7,hq=3,d=40",
                                           "attention_merge:b=7,hq=3,d=8,io=f32",
                                           "attention_merge:b=3,hq=3,d=576,io=f16",
                                           "attention_merge:b=9,hq=2,d=128,in_place=1"));

}  // namespace
}  // namespace hyla::cpu_test
