#include "testing/lost_slots.h"

#include <gtest/gtest.h>

#include "testing/compare.h"
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
      EXPECT_TRUE(is < 0 || is >= static_cast<double>(before.k.shape[0])) << is;
      ++lost_pages;
    });
  }
  EXPECT_GT(lost_pages, 5);
}

class LostAppend : public ::testing::Test {
 protected:
  static bool lost(const Call& call, const Call& sent, std::int64_t page) {
    const TensorView &was = std::get<attention::AppendParams>(call.params).cache.page_table,
                     &is = std::get<attention::AppendParams>(sent.params).cache.page_table;
    bool found = false;
    for_each_element(was, [&](std::int64_t, std::int64_t offset) {
      const double number = load_element(was, offset);
      found = found || (number == static_cast<double>(page) && number != load_element(is, offset));
    });
    return found;
  }

  // What a kernel makes of the call that has lost some pages: all others.
  static Call write_others(const Call& call, const Call& sent) {
    Call result = call;
    run(result, "reference");
    const attention::KvCache& cache = std::get<attention::AppendParams>(result.params).cache;
    for (std::int64_t page = 0; page < cache.k.shape[0]; ++page) {
      if (!lost(call, sent, page)) continue;
      for (const TensorView& half : {cache.k, cache.v, cache.k_scales, cache.v_scales}) {
        if (half.present()) poison(half.slice(0, page, 1));
      }
    }
    return result;
  }
};

TEST_F(LostAppend, PagesThatAreLostAreNotMissedAndOthersAre) {
  int lost_pages = 0;
  for (std::uint64_t number = 1; number < 20; ++number) {
    const Call call = random_call(
        parse_problem("attention_append:lens=9+0+20,hk=2,d=16,kvlen=30+4+20,page=4,kv=int8"),
        CaseOptions::drawn(number));
    const Call sent = lose_slots(call);
    const Judge judge(call);
    Call result = write_others(call, sent);
    const TensorView k = std::get<attention::AppendParams>(result.params).cache.k;
    for (std::int64_t page = 0; page < k.shape[0]; ++page) lost_pages += lost(call, sent, page);
    const Call before = result;
    find_slots(result, sent, call);
    EXPECT_TRUE(judge.compare(result).ok) << number << ": " << judge.compare(result).failure;

    // A page that was not lost, and was not written.
    for (std::int64_t page = 0; page < k.shape[0]; ++page) {
      if (lost(call, sent, page)) continue;
      Call missed = before;
      const TensorView slice =
          std::get<attention::AppendParams>(missed.params).cache.k.slice(0, page, 1);
      bool written = false;
      for_each_element(slice, [&](std::int64_t, std::int64_t at) {
        written = written || !is_poison(slice, at);
      });
      if (!written) continue;
      poison(slice);
      find_slots(missed, sent, call);
      EXPECT_FALSE(judge.compare(missed).ok) << number;
      break;
    }
  }
  EXPECT_GT(lost_pages, 20);
}

TEST_F(LostAppend, AStrayWriteIntoALostPageIsSeen) {
  const Call call = random_call(
      parse_problem("attention_append:lens=40,hk=1,d=16,page=4,rope=halves"), CaseOptions::plain());
  const Call sent = lose_slots(call);
  Call result = write_others(call, sent);
  const TensorView k = std::get<attention::AppendParams>(result.params).cache.k;
  std::int64_t page = 0;
  while (!lost(call, sent, page)) ++page;
  store_element(k, page * k.strides[0], 7);
  find_slots(result, sent, call);
  EXPECT_FALSE(Judge(call).compare(result).ok);
}

}  // namespace
}  // namespace hyla::testing
