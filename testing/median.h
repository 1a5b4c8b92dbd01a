// The median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hyla::testing {

// Of at least one; of an even number the mean of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace hyla::testing
