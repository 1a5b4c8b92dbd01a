// Patterns of shapes: what the compiler reads from them, and the sets of dtypes beside them.
#include "core/pattern.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/check.h"

namespace hyla::core {
namespace {

constexpr Pattern kAll = ">=B 1 N+1 2*H*K+HV*V";
static_assert(kAll.rank() == 4);
static_assert(kAll[0].letter == Letter("B").index() && kAll[0].at_least && kAll[0].plus == 0);
static_assert(kAll[1].is_number && kAll[1].number == 1 && !kAll[1].at_least);
static_assert(kAll[2].letter == Letter("N").index() && kAll[2].plus == 1 && !kAll[2].is_number);
static_assert(kAll[3].letter == Letter("2*H*K+HV*V").index() && kAll[3].plus == 0);
static_assert(Pattern("128").rank() == 1 && Pattern("128")[0].number == 128);
static_assert(kAll.last().rank() == 1 && kAll.last()[0].letter == kAll[3].letter);

std::string message_of(const TensorView& view, DTypes dtypes) {
  try {
    check_tensor("x", view, dtypes, {}, Inner::kAny, Access::kRead);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Pattern, EveryLetterOnce) {
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(kLetters[i], kLetters[j]);
  }
}

TEST(Pattern, AMessageSpellsItOut) {
  float memory[8];
  Shapes shapes;
  shapes.bind("B", 3);
  try {
    shapes.match("x", TensorView(memory, {2, 2, 2}), ">=B 1 N+1");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "x: expected shape [>=B, 1, N+1] with B = 3, got [2, 2, 2]");
  }
  EXPECT_THROW(shapes["N"], std::logic_error);
}

TEST(DTypes, AMessageKeepsTheirOrder) {
  float memory[2];
  const TensorView x(memory, {2});
  EXPECT_EQ(message_of(x, kMaskTypes), "x: expected dtype bool or uint8, got float32");
  EXPECT_EQ(message_of(x, {DType::kFloat16}), "x: expected dtype float16, got float32");
  EXPECT_EQ(message_of(x, {DType::kFloat16, DType::kFloat32}), "accepted");
}

TEST(DTypes, NumbersThatAreNone) {
  float memory[2];
  TensorView x(memory, {2});
  for (int number = 1; number < 256; ++number) {
    x.dtype = static_cast<DType>(number);
    const bool known =
        x.dtype == DType::kInt32 || x.dtype == DType::kInt64 || x.dtype == DType::kUInt32;
    EXPECT_EQ(message_of(x, kIndexTypes) == "accepted", known) << number;
  }
}

TEST(CheckTensor, TheFirstWrongDimensionIsNamed) {
  float memory[4];
  TensorView x(memory, {2, 2});
  x.shape[1] = -2;
  x.strides[0] = -1;
  EXPECT_NE(message_of(x, kFloatTypes).find("strides >= 0"), std::string::npos);
  x.strides[0] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(message_of(x, kFloatTypes).find("sizes >= 0"), std::string::npos);
  x.shape[1] = std::numeric_limits<std::int64_t>::min();
  EXPECT_NE(message_of(x, kFloatTypes).find("sizes >= 0"), std::string::npos);
  x.shape[1] = 0;  // nothing there, so nothing is out of reach
  EXPECT_EQ(message_of(x, kFloatTypes), "accepted");
}

}  // namespace
}  // namespace hyla::core
