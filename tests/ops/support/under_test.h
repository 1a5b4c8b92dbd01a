// Which implementation the GDN tests call. They hold the reference to float64, and are run a second
// time with HYLA_TEST_IMPLEMENTATION=best over what the library itself would choose, in float32.
#pragma once

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

}  // namespace hyla::gdn_test
