// Every form that the plans have for a problem, taken or not, against the float64 reference: which
// one is taken changes with the constants of the cost model.
#include "gpu/prefill_form.h"

namespace hyla::testing {
namespace {

using GpuPrefillForms = GpuParts;
using Forms = PrefillForm<gdn::PlanForm, gdn::prefill_relay_bytes, gdn::launch_prefill_form>;

TEST_P(GpuPrefillForms, AgreeWithTheReference) {
  const std::string& problem = GetParam();
  const Call call = random_call(parse_problem(problem));
  const Judge judge(call);
  const Forms forms(call);
  const std::vector<gdn::PlanForm> all = gdn::prefill_forms(forms.problem(), forms.gpu().context());
  EXPECT_GE(all.size(), 2u) << problem;
  for (const gdn::PlanForm& form : all) {
    const Comparison comparison = judge.compare(forms.run(call, form));
    EXPECT_TRUE(comparison.ok) << problem << ", " << form.implementation << ", " << form.walks.parts
                               << " parts, " << form.walks.blocks_a_cta << " blocks a CTA, "
                               << form.walks.cuts << " pieces"
                               << (form.walks.beside ? ", beside: " : ": ") << comparison.failure
                               << " (" << comparison.tensor << " error " << comparison.max_error
                               << ", bound " << comparison.bound << ")";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, GpuPrefillForms,
    ::testing::Values(
        "gdn_prefill:lens=700,hq=2,hv=4,gate=raw,beta=logit,seed=1",
        "gdn_prefill:lens=600+0+577+64x3,hq=1,hv=2,norm=1,io=f16,told=1,seed=2",
        "gdn_prefill:lens=530x2,hq=1,hv=2,k=64,v=64,state=bf16,layout=kv,seed=3",
        "gdn_prefill:lens=300+515,hq=2,hv=2,k=256,v=256,seed=4",
        "gdn_prefill:lens=8300,hq=1,hv=1,gate=raw,beta=logit,seed=5",
        // More walks than multiprocessors, the longest first (walk_order.cuh).
        "gdn_prefill:lens=5+0+330+64+1+130x3+70,hq=4,hv=8,k=256,v=256,seed=6",
        "gdn_prefill:lens=5+0+130+64+1+330,hq=4,hv=16,k=256,v=256,io=f16,seed=7",
        "gdn_prefill:lens=3x20+1100+65x10+1+0+90x5,hq=2,hv=4,k=64,v=128,told=1,seed=8",
        "gdn_prefill:lens=20+64+377+1100+130,hq=8,hv=24,norm=1,seed=9"));

}  // namespace
}  // namespace hyla::testing
