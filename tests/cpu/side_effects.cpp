// What a call leaves behind besides its results: nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu/counted_new.h"
#include "cpu/denormals.h"
#include "testing/random_problem.h"

namespace hyla::cpu_test {
namespace {

using testing::Call;
using testing::CaseOptions;

// Names and numbers, no word that a macro should have replaced.
TEST(CpuInfo, SaysWhatTheKernelsAreMadeOf) {
  const CpuInfo info = cpu_info();
  const std::vector<std::string> known = implementations("gdn.prefill");
  EXPECT_NE(std::find(known.begin(), known.end(), "cpu_" + info.target), known.end())
      << info.target;
  EXPECT_EQ(info.vectors.find("HWY_"), std::string::npos) << info.vectors;
  EXPECT_FALSE(info.threads.empty());
}

TEST(CpuSideEffects, TheCounterCounts) {
  const long before = allocations();
  ::operator delete(::operator new(8));
  EXPECT_EQ(allocations() - before, 1);
}

TEST(CpuSideEffects, DecodeAndMtpAllocateNothing) {
  for (const char* problem :
       {"gdn_decode:b=4,hq=2,hv=4", "gdn_decode:b=4,hq=2,hv=4,layout=kv",
        "gdn_decode:b=4,hq=2,hv=4,state=bf16", "gdn_mtp:b=4,t=4,hq=2,hv=4",
        "gdn_mtp:b=2,t=8,hq=2,hv=4,mode=all", "attention_decode:b=3,hq=8,hk=2,d=64,kvlen=1100+7+40",
        "attention_decode:b=2,t=4,hq=8,hk=2,d=64,kvlen=1100,kv=e4m3",
        "attention_decode:b=2,hq=8,hk=2,d=64,kvlen=1100,page=0,io=f32"}) {
    const Call call = random_call(testing::parse_problem(problem), CaseOptions::hostile());
    const auto step = [&] {
      std::visit(
          [&](const auto& p) {
            if constexpr (requires { gdn::decode(p, call.context); }) gdn::decode(p, call.context);
            if constexpr (requires { gdn::mtp(p, call.context); }) gdn::mtp(p, call.context);
            if constexpr (requires { attention::run(p, {}, call.context); }) {
              attention::run(p, {}, call.context);
            }
          },
          call.params);
    };
    step();  // a runtime may start its threads
    const long before = allocations();
    step();
    EXPECT_EQ(allocations() - before, 0) << problem;
  }
}

#if defined(__SSE2__)
TEST(CpuSideEffects, TheCallersFloatingPointModeComesBack) {
  const unsigned before = _mm_getcsr();
  {
    const cpu::FlushDenormals flush;
    volatile float small = 1e-38f;
    EXPECT_EQ(small * 0.1f, 0.0f);
  }
  volatile float small = 1e-38f;
  EXPECT_NE(small * 0.1f, 0.0f);
  for (const char* problem : {"gdn_decode:b=1,hq=1,hv=1", "gdn_prefill:lens=40,hq=1,hv=1"}) {
    testing::run(random_call(testing::parse_problem(problem)));
    // The exception flags, below the modes, may change.
    EXPECT_EQ(_mm_getcsr() & ~0x3fu, before & ~0x3fu) << problem;
  }
}
#endif

// alpha = 1 and beta = 0: the state goes through the kernel as it is.
TEST(CpuSideEffects, EveryFiniteSixteenBitNumberPassesThrough) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* layout : {"vk", "kv"}) {
      const std::string problem =
          std::string("gdn_decode:b=1,hq=1,hv=1,k=256,v=256,layout=") + layout +
          ",gate=none,beta=prob,state=" + (dtype == DType::kBFloat16 ? "bf16" : "f16");
      Call call = random_call(testing::parse_problem(problem));
      const auto& p = std::get<gdn::DecodeParams>(call.params);
      *static_cast<float*>(p.beta.value.data) = 0.0f;
      auto* state = static_cast<std::uint16_t*>(p.state.data);
      const auto number = [&](std::uint16_t bits) {
        return dtype == DType::kBFloat16 ? detail::bf16_to_float(bits) : detail::f16_to_float(bits);
      };
      const auto filled = [&](int i) {
        const auto bits = static_cast<std::uint16_t>(i);
        // Products with the largest numbers would overflow, and 0 times infinity is no number.
        return std::fabs(number(bits)) < 1e30f ? bits : std::uint16_t{0};
      };
      for (const Candidate& candidate : testing::explain(call)) {
        if (!candidate.supported) continue;
        for (int i = 0; i < 65536; ++i) state[i] = filled(i);
        testing::run(call, candidate.implementation);
        int wrong = 0;
        for (int i = 0; i < 65536; ++i) {
          const float want = number(filled(i)), got = number(state[i]);
          const bool denormal = std::fabs(want) < 0x1p-126f;  // may have become zero
          wrong += got != want && !(denormal && got == 0.0f);
        }
        EXPECT_EQ(wrong, 0) << problem << " by " << candidate.implementation;
      }
    }
  }
}

// A state far below the normal numbers: what is flushed is smaller than anything float32 holds.
TEST(CpuSideEffects, StatesThatDecayToNothingAreZeroNotNoise) {
  Call call = random_call(testing::parse_problem("gdn_decode:b=1,hq=1,hv=1,gate=linear,beta=prob"));
  const auto& p = std::get<gdn::DecodeParams>(call.params);
  *static_cast<float*>(p.gate.value.data) = 1e-20f;
  *static_cast<float*>(p.beta.value.data) = 0.0f;
  for (int step = 0; step < 4; ++step) testing::run(call);
  const auto* state = static_cast<const float*>(p.state.data);
  for (int i = 0; i < 128 * 128; ++i) ASSERT_EQ(state[i], 0.0f) << i;
}

}  // namespace
}  // namespace hyla::cpu_test
