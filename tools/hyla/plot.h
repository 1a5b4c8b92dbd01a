// A bar chart of times and limits as SVG, without any library.
#pragma once

#include <string>
#include <vector>

namespace hyla::tool {

struct Bar {
  std::string label, detail;
  double us = 0, limit_us = 0;
};

std::string bar_chart(const std::string& title, const std::vector<Bar>& bars);

}  // namespace hyla::tool
