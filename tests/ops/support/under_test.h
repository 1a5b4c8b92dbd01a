// Which implementation the GDN tests call. They hold the reference to float64, and are run a second
// time with HYLA_TEST_IMPLEMENTATION=best over what the library itself would choose, in float32.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace hyla::gdn_test {

inline bool tests_reference() {
  const char* name = std::getenv("HYLA_TEST_IMPLEMENTATION");
  return name == nullptr || std::string_view(name) != "best";
}

inline const char* implementation_under_test() { return tests_reference() ? "reference" : nullptr; }

// Reassociated sums of up to a few hundred terms differ by less than this times the largest
// magnitude involved: 256 terms, two roundings each, 512 * 2^-53 = 6e-14 or 512 * 2^-24.
inline constexpr double kFloat32Sums = 512 * 0x1p-24;
inline const double kReassociation = tests_reference() ? 1e-12 : kFloat32Sums;
// Products of operands rounded to bfloat16, as the error model of testing/compare.h allows them.
inline constexpr double kBFloat16Operands = 4 * 0x1p-8;

// What a comparison that asks for `relative` can ask of the implementation under test.
inline double attainable(double relative, bool bfloat16_operands) {
  if (tests_reference()) return relative;
  return std::max({relative, kFloat32Sums, bfloat16_operands ? kBFloat16Operands : 0.0});
}

}  // namespace hyla::gdn_test
