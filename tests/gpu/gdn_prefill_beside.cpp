// Chunks that are prepared beside the walk over them and handed over one by one, in all forms that
// the plan has for it: against the float64 reference, with the bits of the fused kernel, and in a
// graph that is replayed on other lengths.
#include "gpu/prefill_form.h"

namespace hyla::testing {
namespace {

class GpuPrefillBeside : public Gpu {};

constexpr gdn::SplitForm kForms[] = {{1, 1, 0}, {1, 1, 1}, {2, 1, 0},
                                     {2, 1, 2}, {1, 2, 0}, {1, 2, 1}};

std::string name(const gdn::SplitForm& form) {
  return std::to_string(form.parts) + " parts, " + std::to_string(form.blocks_a_cta) +
         " blocks a CTA, " + std::to_string(form.rounds) + " rounds";
}

// Flags of the workspace are raised before it begins.
using Beside = PrefillForm<gdn::SplitForm, gdn::prefill_split_bytes, gdn::launch_prefill_split_as>;

void check(const std::string& what, const Call& call) {
  const Judge judge(call);
  const Beside beside(call);
  for (const gdn::SplitForm& form : kForms) {
    const Comparison comparison = judge.compare(beside.run(call, form));
    EXPECT_TRUE(comparison.ok) << what << ", " << name(form) << ": " << comparison.failure << " ("
                               << comparison.tensor << " error " << comparison.max_error
                               << ", bound " << comparison.bound << ")";
  }
}

TEST_F(GpuPrefillBeside, LengthsDtypesAndSlots) {
  CaseOptions elsewhere = CaseOptions::scattered();
  CaseOptions anywhere;
  anywhere.starts = true;
  for (const char* problem :
       {"gdn_prefill:lens=300+0+65+1+133,hq=1,hv=2,gate=raw,beta=logit,seed=41",
        "gdn_prefill:lens=300+64x3,hq=2,hv=2,io=f16,state=bf16,layout=kv,norm=1,seed=42",
        "gdn_prefill:lens=200+130,hq=1,hv=2,k=64,v=128,seed=43"}) {
    check(problem, random_call(parse_problem(problem)));
    check(problem, random_call(parse_problem(problem), elsewhere));
    check(problem, random_call(parse_problem(problem), anywhere));
  }
}

// Many chunks, more than there are places for at once, again and again.
TEST_F(GpuPrefillBeside, TheBitsOfTheFusedKernelEveryTime) {
  for (const char* problem : {"gdn_prefill:lens=4000,hq=4,hv=8,seed=45",
                              "gdn_prefill:lens=1500+700,hq=4,hv=8,norm=1,seed=46"}) {
    const Call call = random_call(parse_problem(problem));
    const Beside beside(call);
    beside.gpu().upload(call);
    beside.gpu().launch("cuda_fused");
    const Call fused = beside.gpu().result();
    for (const gdn::SplitForm& form : kForms) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        expect_same_bits(fused, beside.run(call, form), problem + (", " + name(form)));
      }
    }
  }
}

TEST_F(GpuPrefillBeside, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  const ProblemSpec spec = parse_problem("gdn_prefill:lens=300+64+200+0,hq=1,hv=2,slots=32");
  const Call first = random_call(spec, options);
  const Beside beside(first);
  for (const gdn::SplitForm& form : kForms) {
    const cuda::Captured graph([&] { beside.launch(form); });
    for (int replay = 1; replay <= 3; ++replay) {
      const Call next = replay_call(spec, options, first, replay);
      beside.gpu().upload(next);
      graph.replay();
      const Comparison comparison = Judge(next).compare(beside.gpu().result());
      EXPECT_TRUE(comparison.ok) << name(form) << ", replay " << replay << ": "
                                 << comparison.failure;
    }
  }
}

}  // namespace
}  // namespace hyla::testing
