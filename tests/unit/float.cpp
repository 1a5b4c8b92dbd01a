// The storage formats over every bit pattern, against formulas that share nothing with the
// conversion code.
#include <hyla/float.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace {

using hyla::bfloat16;
using hyla::float16;
using hyla::float8_e4m3;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Bfloat16 {
  using Type = bfloat16;
  static constexpr int kBits = 16, kMantissa = 7, kBias = 127;
  static constexpr bool kHasInfinity = true;
};
struct Float16 {
  using Type = float16;
  static constexpr int kBits = 16, kMantissa = 10, kBias = 15;
  static constexpr bool kHasInfinity = true;
};
struct E4m3 {
  using Type = float8_e4m3;
  static constexpr int kBits = 8, kMantissa = 3, kBias = 7;
  static constexpr bool kHasInfinity = false;
};

// What magnitude bits mean by the book: 2^(e - bias) * 1.m, and 2^(1 - bias) * 0.m for e = 0.
template <class F>
double by_the_book(unsigned magnitude) {
  const unsigned exponent = magnitude >> F::kMantissa;
  const unsigned mantissa = magnitude & ((1u << F::kMantissa) - 1u);
  const unsigned top = (1u << (F::kBits - 1 - F::kMantissa)) - 1u;
  const bool all_ones = mantissa == (1u << F::kMantissa) - 1u;
  if (exponent == top && F::kHasInfinity) {
    return mantissa == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == top && all_ones) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return std::ldexp(mantissa, 1 - F::kBias - F::kMantissa);
  return std::ldexp(mantissa + (1u << F::kMantissa),
                    static_cast<int>(exponent) - F::kBias - F::kMantissa);
}

template <class F>
typename F::Type from_bits(unsigned bits) {
  typename F::Type value;
  value.bits = static_cast<decltype(value.bits)>(bits);
  return value;
}

template <class F>
unsigned encode(float value) {
  return typename F::Type(value).bits;
}

template <class F>
constexpr unsigned kSign = 1u << (F::kBits - 1);

// Magnitudes of the finite values, rising: 0, the subnormals, the normals.
template <class F>
unsigned finite_count() {
  unsigned count = 0;
  while (std::isfinite(by_the_book<F>(count))) ++count;
  return count;
}

template <class F>
class SmallFloat : public testing::Test {};
using Formats = testing::Types<Bfloat16, Float16, E4m3>;
TYPED_TEST_SUITE(SmallFloat, Formats);

TYPED_TEST(SmallFloat, DecodesEveryPattern) {
  for (unsigned bits = 0; bits < (1u << TypeParam::kBits); ++bits) {
    const double expected = by_the_book<TypeParam>(bits & ~kSign<TypeParam>);
    const auto value = static_cast<float>(from_bits<TypeParam>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::abs(static_cast<double>(value)), expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & kSign<TypeParam>) != 0) << bits;
  }
}

TYPED_TEST(SmallFloat, EveryPatternSurvivesTheRoundTrip) {
  for (unsigned bits = 0; bits < (1u << TypeParam::kBits); ++bits) {
    const auto value = static_cast<float>(from_bits<TypeParam>(bits));
    const unsigned back = encode<TypeParam>(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(from_bits<TypeParam>(back)))) << bits;
      ASSERT_EQ(back & kSign<TypeParam>, bits & kSign<TypeParam>) << bits;
    } else if (std::isinf(value) && !TypeParam::kHasInfinity) {
      ASSERT_EQ(back & ~kSign<TypeParam>, finite_count<TypeParam>() - 1) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TYPED_TEST(SmallFloat, RoundsToNearestEvenAroundEveryMidpoint) {
  const unsigned count = finite_count<TypeParam>();
  for (unsigned low = 0; low + 1 < count; ++low) {
    const double exact_low = by_the_book<TypeParam>(low),
                 exact_high = by_the_book<TypeParam>(low + 1);
    const auto middle = static_cast<float>((exact_low + exact_high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (exact_low + exact_high) / 2) << "not a float: " << low;
    const unsigned even = low % 2 == 0 ? low : low + 1;
    for (unsigned sign : {0u, kSign<TypeParam>}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(encode<TypeParam>(s * middle), sign | even) << low;
      ASSERT_EQ(encode<TypeParam>(s * std::nextafter(middle, 0.0f)), sign | low) << low;
      ASSERT_EQ(encode<TypeParam>(s * std::nextafter(middle, kInfinity)), sign | (low + 1)) << low;
    }
  }
}

TYPED_TEST(SmallFloat, OneFloatUlpBesideAValueStillRoundsToIt) {
  const unsigned count = finite_count<TypeParam>();
  for (unsigned bits = 1; bits < count; ++bits) {
    const auto value = static_cast<float>(by_the_book<TypeParam>(bits));
    ASSERT_EQ(encode<TypeParam>(std::nextafter(value, 0.0f)), bits);
    ASSERT_EQ(encode<TypeParam>(std::nextafter(value, kInfinity)), bits);
  }
}

TYPED_TEST(SmallFloat, BeyondTheLargestValue) {
  const unsigned largest = finite_count<TypeParam>() - 1;
  const double step = by_the_book<TypeParam>(largest) - by_the_book<TypeParam>(largest - 1);
  const double limit =
      by_the_book<TypeParam>(largest) + step / 2;  // a tie with the next power of two
  const unsigned over = TypeParam::kHasInfinity ? largest + 1 : largest;
  const auto tie = static_cast<float>(limit);
  ASSERT_EQ(static_cast<double>(tie), limit);
  EXPECT_EQ(encode<TypeParam>(std::nextafter(tie, 0.0f)), largest);
  const float above = std::nextafter(tie, kInfinity);
  for (float value : {tie, above, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(encode<TypeParam>(value), over) << value;
    EXPECT_EQ(encode<TypeParam>(-value), kSign<TypeParam> | over) << value;
  }
}

TYPED_TEST(SmallFloat, BelowTheSmallestValue) {
  // Half of the smallest subnormal is a tie with zero, which is even.
  const auto half = static_cast<float>(by_the_book<TypeParam>(1) / 2);
  for (float value :
       {0.0f, std::numeric_limits<float>::denorm_min(), std::nextafter(half, 0.0f), half}) {
    if (value == std::numeric_limits<float>::denorm_min() && value > half) continue;
    EXPECT_EQ(encode<TypeParam>(value), 0u) << value;
    EXPECT_EQ(encode<TypeParam>(-value), kSign<TypeParam>) << value;
  }
  EXPECT_EQ(encode<TypeParam>(std::nextafter(half, 1.0f)), 1u);
}

TYPED_TEST(SmallFloat, KeepsNaN) {
  for (std::uint32_t payload : {1u, 0x1000u, 0x1fffu, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      const auto small = from_bits<TypeParam>(encode<TypeParam>(nan));
      EXPECT_TRUE(std::isnan(static_cast<float>(small))) << payload;
      EXPECT_EQ(std::signbit(static_cast<float>(small)), sign != 0) << payload;
    }
  }
}

// Conversions are usable where constants are made.
static_assert(static_cast<float>(bfloat16(1.0f)) == 1.0f);
static_assert(float16(-2.0f).bits == 0xc000);
static_assert(float8_e4m3(448.0f).bits == 0x7e);

}  // namespace
