// Segments whose outputs the fused kernel makes, with numbers of parts and pieces that the plan
// takes for very long sequences only: against the float64 reference, to the bit every time, and in
// a graph that is replayed on other lengths.
#include <cmath>
#include <cstring>

#include "gpu/prefill_form.h"

namespace hyla::testing {
namespace {

class GpuPrefillRelay : public Gpu {};

struct Walk {
  int parts, cuts;
};
constexpr Walk kWalks[] = {{2, 1}, {2, 4}, {3, 3}, {5, 2}};

void launch_relay(const gdn::PrefillProblem& problem, const Workspace& workspace,
                  const Context& context, const Walk& walk) {
  gdn::launch_prefill_relay_as(problem, workspace, context, walk.parts, walk.cuts);
}
using Relay = PrefillForm<Walk, gdn::prefill_relay_bytes, launch_relay>;

void check(const std::string& what, const Call& call) {
  const Judge judge(call);
  const Relay relay(call);
  for (const Walk& walk : kWalks) {
    const Comparison comparison = judge.compare(relay.run(call, walk));
    EXPECT_TRUE(comparison.ok) << what << ", " << walk.parts << " parts of " << walk.cuts << ": "
                               << comparison.failure << " (" << comparison.tensor << " error "
                               << comparison.max_error << ", bound " << comparison.bound << ")";
  }
}

template <class Value>
void fill(const TensorView& view, Value&& value) {
  for_each_element(view, [&](std::int64_t index, std::int64_t offset) {
    store_element(view, offset, value(index, load_element(view, offset)));
  });
}

TEST_F(GpuPrefillRelay, LengthsDtypesAndSlots) {
  CaseOptions elsewhere = CaseOptions::scattered();
  for (const char* problem :
       {"gdn_prefill:lens=1000+0+65+700+1,hq=1,hv=2,seed=31",
        "gdn_prefill:lens=900+64x3,hq=2,hv=2,io=f16,state=bf16,layout=kv,norm=1,seed=32",
        "gdn_prefill:lens=1300,hq=2,hv=4,gate=raw,beta=logit,seed=33"}) {
    check(problem, random_call(parse_problem(problem)));
    check(problem, random_call(parse_problem(problem), elsewhere));
  }
}

// Parts that forget, that do not, and that would but for keys that let the state grow.
TEST_F(GpuPrefillRelay, WhatIsRemembered) {
  const std::string problem = "gdn_prefill:lens=2300,hq=1,hv=2,gate=log,seed=34";
  const auto with = [&](const char* what, auto&& alpha, double key) {
    Call call = random_call(parse_problem(problem));
    auto& params = std::get<gdn::PrefillParams>(call.params);
    fill(params.gate.value,
         [&](std::int64_t i, double x) { return alpha(i / 2, static_cast<int>(i % 2), x); });
    fill(params.k, [&](std::int64_t, double x) { return key * x; });
    check(what, call);
  };
  with(
      "a head that forgets", [](std::int64_t, int head, double) { return -1.0 * head; }, 1);
  with(
      "a wipe now and then",
      [](std::int64_t token, int head, double x) {
        return (token + 17 * head) % 450 == 5 ? -INFINITY : x / 50;
      },
      1);
  with(
      "a decay that ends in the middle",
      [](std::int64_t token, int, double) { return token < 1150 ? -1.5 : 0.0; }, 1);
  with(
      "keys that grow", [](std::int64_t, int, double) { return -1.5; }, 2);
}

// As the plan has it.
TEST_F(GpuPrefillRelay, ALongSequence) {
  const std::string problem = "gdn_prefill:lens=8500,hq=1,hv=2,seed=36";
  const Call call = random_call(parse_problem(problem));
  const DeviceCall gpu(call);
  gpu.launch("cuda_relay");
  const Comparison comparison = Judge(call).compare(gpu.result());
  EXPECT_TRUE(comparison.ok) << problem << ": " << comparison.failure;
}

TEST_F(GpuPrefillRelay, SameBitsEveryTime) {
  const std::string problem = "gdn_prefill:lens=1500+300,hq=2,hv=4,seed=35";
  const Call call = random_call(parse_problem(problem));
  const Relay relay(call);
  const Call first = relay.run(call, {3, 3});
  for (int repeat = 0; repeat < 5; ++repeat) {
    expect_same_bits(first, relay.run(call, {3, 3}), problem);
  }
}

TEST_F(GpuPrefillRelay, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  const ProblemSpec spec = parse_problem("gdn_prefill:lens=900+64+400+0,hq=2,hv=2,slots=32");
  const Call first = random_call(spec, options);
  const Relay relay(first);
  const cuda::Captured graph([&] { relay.launch({3, 2}); });
  for (int replay = 1; replay <= 3; ++replay) {
    const Call next = replay_call(spec, options, first, replay);
    relay.gpu().upload(next);
    graph.replay();
    const Comparison comparison = Judge(next).compare(relay.gpu().result());
    EXPECT_TRUE(comparison.ok) << "replay " << replay << ": " << comparison.failure;
  }
}

}  // namespace
}  // namespace hyla::testing
