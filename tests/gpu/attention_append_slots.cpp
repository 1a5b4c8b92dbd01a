// attention.append by slots on the GPU: against the float64 reference, by the same kernels as by
// rows, and slots that the cache does not have.
#include <gtest/gtest.h>

#include <string>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuAppendSlots = Gpu;
using GpuAppendSlotsOf = GpuParts;
using attention::AppendParams;

// Few tokens, some, and more than the kernels for few take.
TEST_P(GpuAppendSlotsOf, EveryKernel) {
  std::uint64_t seed = 7000;
  for (const char* types : {"io=bf16,kv=bf16", "io=f16,kv=f16", "io=f32,kv=bf16", "io=bf16,kv=e4m3",
                            "io=f16,kv=int8", "kv=e4m3,scales=given"}) {
    for (const char* rope : {"none", "halves", "pairs"}) {
      for (const char* shape : {"d=256,page=16", "d=72,page=7", "d=128,page=0", "d=64,page=1"}) {
        const std::string problem = "attention_append:hk=2,by=slots," + GetParam() + "," + types +
                                    "," + shape + ",rope=" + rope + ",seed=" + std::to_string(seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(++seed));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, GpuAppendSlotsOf,
                         ::testing::Values("b=5,t=1,kvlen=70", "lens=33+0+70+1",
                                           "lens=520,kvlen=530"));

TEST_F(GpuAppendSlots, SameBitsEveryTimeAndInGraphs) {
  for (const char* rows : {"b=5,t=1,kvlen=70", "lens=520"}) {
    const std::string problem =
        std::string("attention_append:hk=2,d=128,page=16,rope=halves,by=slots,") + rows;
    check_repeats(problem);
    CaseOptions options;
    options.shuffled = options.padding = true;
    check_replays(problem, options);
  }
}

// Slots and positions that the cache and the tables do not have: nothing is written, or not turned.
TEST_F(GpuAppendSlots, ASlotOutsideTheCacheIsNotWritten) {
  for (const char* rows : {"lens=6", "lens=520"}) {
    for (const char* types : {"kv=bf16", "kv=bf16,rope=halves", "kv=e4m3", "io=f32,kv=f32"}) {
      for (const bool wide : {false, true}) {
        for (const double lie : {-1.0, -2147483648.0, 2147483647.0, 0x1p40, -0x1p40}) {
          if (!wide && std::abs(lie) > 0x1p31) continue;
          CaseOptions options;
          options.wide_indices = wide;
          const Call call = random_call(
              parse_problem(std::string("attention_append:hk=2,d=64,page=16,by=slots,") + rows +
                            "," + types),
              options);
          Call skipped = call, lying = call;  // the reference has a slot for "nowhere"
          const auto set = [](const Call& of, double slot) {
            const auto& p = std::get<AppendParams>(of.params);
            store_element(p.slots, 3 * p.slots.strides[0], slot);
          };
          set(skipped, -1);
          set(lying, lie);
          const Judge judge(skipped);
          const DeviceCall gpu(lying);
          for (const Candidate& candidate : gpu.explain()) {
            if (!candidate.supported) continue;
            gpu.upload(lying);
            gpu.launch(candidate.implementation);
            Call got = gpu.result();
            set(got, -1);
            const Comparison comparison = judge.compare(got);
            EXPECT_TRUE(comparison.ok) << candidate.implementation << " " << types << " " << lie
                                       << ": " << comparison.failure;
          }
        }
      }
    }
  }
}

// Exactly one beyond the end.
TEST_F(GpuAppendSlots, TheSlotBehindTheLastIsNotWritten) {
  for (const char* page : {"page=16", "page=7", "page=1", "page=0"}) {
    const Call call = random_call(
        parse_problem(std::string("attention_append:hk=2,d=64,lens=9,by=slots,") + page),
        CaseOptions::plain());
    const auto& p = std::get<AppendParams>(call.params);
    Call skipped = call, lying = call;
    const std::int64_t end = p.cache.k.shape[0] * p.cache.k.shape[1];
    store_element(std::get<AppendParams>(skipped.params).slots, 2 * p.slots.strides[0], -1);
    store_element(std::get<AppendParams>(lying.params).slots, 2 * p.slots.strides[0],
                  static_cast<double>(end));
    const Judge judge(skipped);
    const DeviceCall gpu(lying);
    for (const char* name : {"cuda_rows", "cuda_heads"}) {
      gpu.upload(lying);
      gpu.launch(name);
      Call got = gpu.result();
      store_element(std::get<AppendParams>(got.params).slots, 2 * p.slots.strides[0], -1);
      const Comparison comparison = judge.compare(got);
      EXPECT_TRUE(comparison.ok) << name << " " << page << ": " << comparison.failure;
    }
  }
}

}  // namespace
}  // namespace hyla::testing
