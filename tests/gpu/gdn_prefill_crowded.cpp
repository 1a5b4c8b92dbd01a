// Chunks handed over between grids where these do not have the device for themselves: CTAs that
// start late and one after another, a few multiprocessors for all of them, and two calls at once
// that would each like to have all. Every call must end, with the bits it has alone.
#include "gpu/crowd.h"
#include "gpu/prefill_form.h"

namespace hyla::testing {
namespace {

class GpuPrefillCrowded : public Gpu {};

using Beside = PrefillForm<gdn::SplitForm, gdn::prefill_split_bytes, gdn::launch_prefill_split_as>;

constexpr double kSeconds = 20;  // a call takes milliseconds; others may share the device

// A call in one form, and what it gives alone.
class Handed {
 public:
  Handed(const char* problem, const gdn::SplitForm& form)
      : name_(problem +
              (", " + std::to_string(form.parts) + " parts, " + std::to_string(form.blocks_a_cta) +
               " blocks a CTA, " + std::to_string(form.rounds) + " rounds")),
        form_(form),
        call_(random_call(parse_problem(problem))),
        beside_(call_),
        alone_(beside_.run(call_, form)) {}

  void upload() const { beside_.gpu().upload(call_); }
  void launch(const Stream& stream) const { beside_.launch(form_, stream); }
  void expect_bits(const char* what) const {
    expect_same_bits(alone_, beside_.gpu().result(), name_ + what);
  }
  // Flags that are raised let every walk go on, to wrong results: a test that fails must end, too.
  bool ends(const Stream& stream) const {
    if (cuda::ends_within(stream, kSeconds)) return true;
    ADD_FAILURE() << name_ << ": still waits after " << kSeconds << " s";
    cuda::fill_beside(beside_.workspace().data, 0xff, beside_.workspace().bytes);
    cuda::must_end(stream, kSeconds, name_.c_str());
    return false;
  }
  const Stream& stream() const { return beside_.gpu().context().stream; }

 private:
  const std::string name_;
  const gdn::SplitForm form_;
  const Call call_;
  const Beside beside_;
  const Call alone_;
};

// Many heads of few tokens: chunks for several rounds of all multiprocessors.
constexpr const char* kOne = "gdn_prefill:lens=700,hq=2,hv=32,seed=51";
constexpr const char* kMany = "gdn_prefill:lens=500+900+64+333,hq=2,hv=8,norm=1,seed=52";
constexpr const char* kHalves = "gdn_prefill:lens=600x2,hq=2,hv=16,io=f16,seed=53";
// The same state for two parts of a sequence, the last of which writes it.
constexpr const char* kWide = "gdn_prefill:lens=700+1300,hq=2,hv=8,k=256,v=128,seed=54";
constexpr const char* kWideHalves = "gdn_prefill:lens=900,hq=4,hv=8,k=192,v=192,io=f16,seed=55";

TEST_F(GpuPrefillCrowded, MultiprocessorsThatBecomeFreeOneByOne) {
  cuda::Crowd crowd;
  for (const char* problem : {kOne, kMany, kHalves}) {
    for (const gdn::SplitForm& form :
         {gdn::SplitForm{1, 1, 0}, {2, 1, 0}, {1, 2, 0}, {1, 1, 1}, {1, 2, 2}}) {
      const Handed handed(problem, form);
      for (const int step_us : {2, 12}) {
        handed.upload();
        cuda::synchronize();
        crowd.hold(step_us);
        handed.launch(handed.stream());
        crowd.let_go(step_us);
        if (!handed.ends(handed.stream())) return;
        crowd.end();
        handed.expect_bits(", one by one");
      }
    }
  }
}

TEST_F(GpuPrefillCrowded, AFewMultiprocessorsAreEnough) {
  cuda::Crowd crowd;
  for (const char* problem : {kOne, kMany, kHalves}) {
    for (const gdn::SplitForm& form : {gdn::SplitForm{1, 1, 0}, {2, 1, 0}, {1, 2, 0}, {1, 1, 1}}) {
      const Handed handed(problem, form);
      for (const int left : {1, 50}) {
        handed.upload();
        cuda::synchronize();
        crowd.hold(left);
        handed.launch(handed.stream());
        const bool ended = handed.ends(handed.stream());
        EXPECT_TRUE(crowd.holds()) << problem << ": ended only when others had";
        crowd.end();
        if (!ended) return;
        handed.expect_bits(", few multiprocessors");
      }
    }
  }
}

TEST_F(GpuPrefillCrowded, PartsOfWideKeysStartInAnyOrder) {
  cuda::Crowd crowd;
  for (const char* problem : {kWide, kWideHalves}) {
    const Handed handed(problem, {2, 1, -1});
    for (const int left : {0, 1, 2, 7, 20, 50, 100}) {
      handed.upload();
      cuda::synchronize();
      crowd.hold(left);
      handed.launch(handed.stream());
      crowd.let_go(left % 2 == 0 ? 2 : 12);
      if (!handed.ends(handed.stream())) return;
      crowd.end();
      handed.expect_bits(", parts of wide keys");
    }
  }
}

// A few heads: the sequence that is much longer than the others is walked over in two parts.
TEST_F(GpuPrefillCrowded, PartsOfLongSequencesStartInAnyOrder) {
  cuda::Crowd crowd;
  for (const char* problem :
       {"gdn_prefill:lens=5000+60x40,hq=2,hv=4,seed=56",
        "gdn_prefill:lens=130x20+4000+100x9+4100,hq=4,hv=8,io=f16,state=bf16,norm=1,seed=57"}) {
    const Call call = random_call(parse_problem(problem));
    const DeviceCall gpu(call);
    gpu.upload(call);
    gpu.launch("cuda_fused");
    const Call alone = gpu.result();
    for (const int left : {0, 1, 2, 7, 20, 50, 100}) {
      gpu.upload(call);
      cuda::synchronize();
      crowd.hold(left);
      gpu.launch("cuda_fused");
      crowd.let_go(left % 2 == 0 ? 2 : 12);
      cuda::must_end(gpu.context().stream, kSeconds, problem);
      crowd.end();
      expect_same_bits(alone, gpu.result(), problem);
    }
  }
}

// Each would have all multiprocessors if it were alone. What one of them has not started must not be
// what the others' resident CTAs wait for.
TEST_F(GpuPrefillCrowded, TwoCallsAtOnce) {
  const Handed calls[] = {{kOne, {1, 1, 0}},    {kMany, {1, 2, 0}},   {kHalves, {1, 1, 0}},
                          {kHalves, {2, 1, 0}}, {kOne, {1, 2, 1}},    {kMany, {1, 1, 0}},
                          {kOne, {1, 1, 2}},    {kHalves, {1, 2, 0}}, {kOne, {1, 1, 0}}};
  const cuda::OwnStream streams[2];
  cuda::Crowd crowd;
  constexpr int kRepeats = 200, kCalls = static_cast<int>(std::size(calls));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Handed* pair[] = {&calls[repeat % kCalls],
                            &calls[(repeat + 1 + repeat / kCalls % (kCalls - 1)) % kCalls]};
    for (const Handed* call : pair) call->upload();
    cuda::synchronize();
    if (repeat % 2 != 0) crowd.hold(0);  // both begin at the same time, as CTAs of both find room
    for (int i = 0; i < 2; ++i) pair[i]->launch(streams[i].get());
    crowd.let_go(repeat % 4);
    for (int i = 0; i < 2; ++i) {
      if (!pair[i]->ends(streams[i].get())) return;
    }
    crowd.end();
    for (const Handed* call : pair) call->expect_bits(", two at once");
  }
}

TEST_F(GpuPrefillCrowded, BranchesOfAGraph) {
  const Handed one(kOne, {1, 1, 0}), many(kMany, {1, 2, 0}), halves(kHalves, {2, 1, 0});
  const Handed* const branches[] = {&one, &many, &halves};
  const cuda::OwnStream streams[3];
  const Stream main = one.stream();
  const cuda::Captured graph([&] {
    for (int i = 0; i < 3; ++i) {
      const Stream branch = streams[i].get();
      cuda::follow(main, branch);
      branches[i]->launch(branch);
    }
    for (const cuda::OwnStream& stream : streams) cuda::follow(stream.get(), main);
  });
  cuda::Crowd crowd;
  for (int replay = 0; replay < 60; ++replay) {
    for (const Handed* branch : branches) branch->upload();
    cuda::synchronize();
    if (replay % 3 == 0) crowd.hold(replay);
    graph.replay();
    crowd.let_go(5);
    for (const Handed* branch : branches) {
      if (!branch->ends(main)) return;
    }
    crowd.end();
    for (const Handed* branch : branches) branch->expect_bits(", in a graph");
  }
}

}  // namespace
}  // namespace hyla::testing
