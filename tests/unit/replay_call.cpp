// Calls for a captured graph, and calls whose pools lie far away.
#include "testing/replay_call.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/far_pool.h"

namespace hyla::testing {
namespace {

const std::vector<std::string> kProblems = {
    "gdn_decode:b=5,hq=1,hv=2,k=8,v=8",
    "gdn_mtp:lens=1+4+0+2,hq=1,hv=2,k=8,v=8,mode=accepted",
    "gdn_prefill:lens=65+0+130,hq=1,hv=1,k=8,v=8,checkpoint=64",
    "conv_update:lens=3+0+1+4,hq=1,hv=1,k=8,v=8,drafts=3",
    "attention_prefill:lens=20+9,kvlen=40+9,hq=2,hk=1,d=8,page=16",
    "attention_append:lens=30+0+1,kvlen=40,hk=2,d=8,page=16",
    "attention_append:lens=30+0+1,kvlen=40,hk=2,d=8,page=16,rope=pairs,by=slots"};

CaseOptions with_slots() {
  CaseOptions options = CaseOptions::scattered();
  return options;
}

std::vector<double> values_of(const Call& call, const std::string& name) {
  std::vector<double> values;
  for (const NamedTensor& tensor : tensors(call)) {
    if (tensor.name != name) continue;
    for_each_element(tensor.view, [&](std::int64_t, std::int64_t offset) {
      values.push_back(load_element(tensor.view, offset));
    });
  }
  return values;
}

TEST(ReplayCall, SameShapesOtherContents) {
  for (const std::string& problem : kProblems) {
    const ProblemSpec spec = parse_problem(problem);
    const Call first = random_call(spec, with_slots());
    for (int replay : {1, 2}) {
      const Call next = replay_call(spec, with_slots(), first, replay);
      const std::vector<NamedTensor> a = tensors(first), b = tensors(next);
      ASSERT_EQ(a.size(), b.size()) << problem;
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].name, b[i].name) << problem;
        for (int d = 0; d < TensorView::kMaxRank; ++d) {
          EXPECT_EQ(a[i].view.shape[d], b[i].view.shape[d]) << problem << " " << a[i].name;
          EXPECT_EQ(a[i].view.strides[d], b[i].view.strides[d]) << problem << " " << a[i].name;
        }
      }
      EXPECT_EQ(first_slot(first), first_slot(next)) << problem;
    }
  }
}

TEST(ReplayCall, LengthsInAnotherOrder) {
  const ProblemSpec spec = parse_problem(kProblems[1]);
  const Call first = random_call(spec, with_slots());
  EXPECT_EQ(values_of(first, "cu_seqlens"), (std::vector<double>{0, 1, 5, 5, 7}));
  EXPECT_EQ(values_of(replay_call(spec, with_slots(), first, 1), "cu_seqlens"),
            (std::vector<double>{0, 4, 4, 6, 7}));
}

TEST(FarPool, ShiftsWhatNamesASlotAndNothingElse) {
  for (const std::string& problem : kProblems) {
    const Call near = random_call(parse_problem(problem), with_slots());
    const std::int64_t shift = far_shift(near);
    Call far = near;
    shift_slots(far, shift);
    bool moved = false;
    for (const NamedTensor& tensor : tensors(near)) {
      const std::vector<double> before = values_of(near, tensor.name);
      const std::vector<double> after = values_of(far, tensor.name);
      if (is_pool(tensor.name) && !tensor.name.ends_with("_scales")) {
        EXPECT_GT(shift * tensor.view.strides[0], std::int64_t{1} << 31) << problem;
      }
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (before[i] == after[i] || before[i] != before[i]) continue;
        // A slot of append is one of the 16 tokens of a page.
        const std::int64_t numbers = tensor.name == "slots" ? 16 * shift : shift;
        EXPECT_EQ(after[i], before[i] + static_cast<double>(numbers)) << problem << tensor.name;
        EXPECT_TRUE(tensor.name.ends_with("slots") || tensor.name.ends_with("page_table"))
            << problem << " " << tensor.name;
        moved = true;
      }
    }
    EXPECT_TRUE(moved) << problem;
    shift_slots(far, -shift);
    for (const NamedTensor& tensor : tensors(near)) {
      if (tensor.name.ends_with("_slots")) {
        EXPECT_EQ(values_of(near, tensor.name), values_of(far, tensor.name)) << problem;
      }
    }
  }
}

TEST(FarPool, NoneWithoutSlotsOrPages) {
  EXPECT_EQ(far_shift(random_call(parse_problem("norm_gated_rms:b=2,hv=1,v=8"))), 0);
  EXPECT_EQ(
      far_shift(random_call(parse_problem("attention_decode:b=2,hq=1,hk=1,d=8,kvlen=9,page=0"))),
      0);
}

}  // namespace
}  // namespace hyla::testing
