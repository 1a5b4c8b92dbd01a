#include "testing/lost_slots.h"

#include <gtest/gtest.h>

#include "testing/random_problem.h"

namespace hyla::testing {
namespace {

const TensorView& slots_of(const Call& call) {
  return std::get<gdn::DecodeParams>(call.params).read_slots;
}

TEST(LostSlots, NullSlotsGoBeyondThePoolAndComeBack) {
  CaseOptions options = CaseOptions::scattered();
  const Call call = random_call(parse_problem("gdn_decode:b=20,hq=1,hv=1,k=8,v=8"), options);
  const std::int64_t pool = std::get<gdn::DecodeParams>(call.params).state.shape[0];
  Call lost = lose_slots(call);
  int nulls = 0;
  const TensorView &before = slots_of(call), &after = slots_of(lost);
  for (std::int64_t row = 0; row < 20; ++row) {
    const double was = load_element(before, row * before.strides[0]);
    const double is = load_element(after, row * after.strides[0]);
    if (was >= static_cast<double>(first_slot(call))) {
      EXPECT_EQ(was, is);
    } else {
      EXPECT_GE(is, static_cast<double>(pool));
      ++nulls;
    }
  }
  EXPECT_GT(nulls, 0);

  Call result = lost;
  find_slots(result, lost, call);
  for (std::int64_t row = 0; row < 20; ++row) {
    const TensorView& found = slots_of(result);
    EXPECT_EQ(load_element(before, row * before.strides[0]),
              load_element(found, row * found.strides[0]));
  }
}

// What a kernel wrote over its slots must not be hidden.
TEST(LostSlots, ChangedSlotsStayChanged) {
  const Call call =
      random_call(parse_problem("gdn_decode:b=20,hq=1,hv=1,k=8,v=8"), CaseOptions::scattered());
  const Call lost = lose_slots(call);
  Call result = lost;
  store_element(slots_of(result), 0, 12345);
  find_slots(result, lost, call);
  EXPECT_EQ(load_element(slots_of(result), 0), 12345);
}

TEST(LostSlots, PagesOfZerosAreLost) {
  int lost_pages = 0;
  for (std::uint64_t number = 1; number < 40; ++number) {
    const Call call =
        random_call(parse_problem("attention_decode:b=3,hq=1,hk=1,d=8,kvlen=9+20+33,page=4"),
                    CaseOptions::drawn(number));
    const Call lost = lose_slots(call);
    const auto& before = std::get<attention::RunParams>(call.params).cache;
    const auto& after = std::get<attention::RunParams>(lost.params).cache;
    for_each_element(before.page_table, [&](std::int64_t, std::int64_t offset) {
      const double was = load_element(before.page_table, offset);
      const double is = load_element(after.page_table, offset);
      if (was == is) return;
      EXPECT_GE(is, static_cast<double>(before.k.shape[0]));
      ++lost_pages;
    });
  }
  EXPECT_GT(lost_pages, 5);
}

}  // namespace
}  // namespace hyla::testing
