#include "testing/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace hyla::testing {
namespace {

using ::testing::HasSubstr;

constexpr DType kAllTypes[] = {DType::kFloat32,    DType::kBFloat16, DType::kFloat16,
                               DType::kFloat8E4M3, DType::kInt8,     DType::kInt32,
                               DType::kInt64,      DType::kUInt32,   DType::kUInt8};

void flip(Buffer& buffer, std::int64_t element) {
  const auto size = static_cast<std::int64_t>(size_of(buffer.dtype()));
  buffer.data()[element * size] ^= std::byte{1};
}

TEST(Buffer, FillingEveryElementLeavesTheGuardsWhole) {
  for (DType dtype : kAllTypes) {
    Buffer buffer("x", dtype, {3, 4, 5}, {40, 7, 1}, 3);
    buffer.fill(1);
    EXPECT_EQ(buffer.check_guards(), std::nullopt) << name_of(dtype);
    for (std::int64_t i = 0; i < buffer.numel(); ++i) ASSERT_EQ(buffer.get(i), 1);
  }
}

TEST(Buffer, AWriteBeforeBehindOrBetweenIsFound) {
  for (DType dtype : kAllTypes) {
    const Buffer whole("x", dtype, {3, 4}, {6, 1}, 1);
    // Elements lie at 0-3, 6-9, 12-15.
    for (std::int64_t element : {-1, -5, 4, 5, 10, 11, 16, 17, 40}) {
      Buffer damaged = whole;
      flip(damaged, element);
      const auto where = damaged.check_guards();
      ASSERT_TRUE(where.has_value()) << name_of(dtype) << " " << element;
      EXPECT_THAT(*where, HasSubstr(element < 0    ? "before its first"
                                    : element > 15 ? "past its last"
                                                   : "stride gap"));
      EXPECT_EQ(whole.check_guards(), std::nullopt);
    }
    for (std::int64_t element : {0, 3, 6, 15}) {
      Buffer written = whole;
      flip(written, element);
      EXPECT_EQ(written.check_guards(), std::nullopt) << name_of(dtype) << " " << element;
    }
  }
}

TEST(Buffer, PoisonOfFloatsIsNaN) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3}) {
    const Buffer buffer("x", dtype, {4});
    for (std::int64_t offset = -8; offset < 12; ++offset) {
      EXPECT_TRUE(std::isnan(load_element(buffer.view(), offset))) << name_of(dtype);
      EXPECT_TRUE(is_poison(buffer.view(), offset));
    }
  }
}

TEST(Buffer, ANaNOfArithmeticIsNotPoison) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Buffer buffer("x", dtype, {1});
    buffer.set(0, std::nan(""));
    EXPECT_TRUE(std::isnan(buffer.get(0)));
    EXPECT_FALSE(is_poison(buffer.view(), 0)) << name_of(dtype);
  }
}

TEST(Buffer, RandomValuesDependOnSeedAndNameOnly) {
  Buffer a("a", DType::kFloat32, {1000}), strided("a", DType::kFloat32, {1000}, {3}, 2);
  Buffer other_name("b", DType::kFloat32, {1000}), other_seed("a", DType::kFloat32, {1000});
  a.fill_normal(1, 0, 1);
  strided.fill_normal(1, 0, 1);
  other_name.fill_normal(1, 0, 1);
  other_seed.fill_normal(2, 0, 1);
  int same_name = 0, same_seed = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(a.get(i), strided.get(i));
    same_name += a.get(i) == other_seed.get(i);
    same_seed += a.get(i) == other_name.get(i);
  }
  EXPECT_LT(same_name, 5);
  EXPECT_LT(same_seed, 5);
}

// Large enough to be filled by several threads, with a gap after each row.
TEST(Buffer, LargeBuffersHoldTheSameValuesByIndex) {
  Buffer buffer("x", DType::kFloat32, {7, 1'500'001}, {1'500'004, 1});
  buffer.fill_normal(5, 1, 2);
  const Random random(5, "x");
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < buffer.numel(); ++i) {
    wrong += buffer.get(i) != static_cast<float>(1 + 2 * random.normal(i));
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(buffer.check_guards(), std::nullopt);
}

TEST(Buffer, NormalValuesHaveTheirMeanAndDeviation) {
  constexpr std::int64_t kCount = 100000;
  Buffer buffer("x", DType::kFloat32, {kCount});
  buffer.fill_normal(3, 2, 0.5);
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    sum += buffer.get(i);
    squares += (buffer.get(i) - 2) * (buffer.get(i) - 2);
  }
  // Standard errors: 0.5/sqrt(n) = 0.0016 of the mean, 0.5/sqrt(2n) = 0.0011 of the deviation;
  // five of each.
  EXPECT_NEAR(sum / kCount, 2, 5 * 0.0016);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.5, 5 * 0.0011);
}

TEST(Buffer, CopiesHaveMemoryOfTheirOwn) {
  Buffer a("a", DType::kInt64, {4});
  a.fill(7);
  Buffer b = a;
  b.fill(8);
  EXPECT_EQ(a.get(3), 7);
  EXPECT_FALSE(a.holds(b.data()));
  EXPECT_TRUE(b.holds(b.data()));
}

TEST(Buffer, EmptyTensorsHaveGuardsToo) {
  Buffer buffer("x", DType::kFloat32, {3, 0, 2});
  EXPECT_EQ(buffer.numel(), 0);
  EXPECT_EQ(buffer.check_guards(), std::nullopt);
  flip(buffer, 0);
  EXPECT_NE(buffer.check_guards(), std::nullopt);
}

}  // namespace
}  // namespace hyla::testing
