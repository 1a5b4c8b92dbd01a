#include "plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hyla::tool {
namespace {

constexpr int kWidth = 960, kLeft = 24, kRight = 110, kTop = 64, kRow = 44, kBar = 16;

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (c >= ' ' && c <= '~') result += c;
    }
  }
  return result;
}

std::string decade_label(double us) {
  if (us < 1000) return fmt::format("{:g} us", us);
  return us < 1e6 ? fmt::format("{:g} ms", us / 1e3) : fmt::format("{:g} s", us / 1e6);
}

// Times span many decades, so the axis is logarithmic and starts a decade below the smallest.
class Axis {
 public:
  explicit Axis(const std::vector<Bar>& bars) {
    double low = 1e300, high = 0;
    for (const Bar& bar : bars) {
      for (double us : {bar.us, bar.limit_us}) {
        if (us > 0) low = std::min(low, us);
        high = std::max(high, us);
      }
    }
    if (high == 0) low = high = 1;
    first_ = static_cast<int>(std::floor(std::log10(low)));
    last_ = std::max(static_cast<int>(std::ceil(std::log10(high))), first_ + 1);
  }
  int first() const { return first_; }
  int last() const { return last_; }
  double x(double us) const {
    const double share =
        us <= 0 ? 0 : (std::log10(us) - first_) / static_cast<double>(last_ - first_);
    return kLeft + std::clamp(share, 0.0, 1.0) * (kWidth - kLeft - kRight);
  }

 private:
  int first_ = 0, last_ = 1;
};

std::string grid(const Axis& axis, int bottom) {
  std::string svg;
  for (int decade = axis.first(); decade <= axis.last(); ++decade) {
    const double us = std::pow(10.0, decade), x = axis.x(us);
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#dddddd\"/>\n", x,
        kTop - 8, bottom);
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666666\">{}</text>\n", x,
        bottom + 16, decade_label(us));
  }
  return svg;
}

std::string row(const Axis& axis, const Bar& bar, int y) {
  const double end = axis.x(bar.us), limit = axis.x(bar.limit_us);
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#222222\">{}</text>\n", kLeft,
                                y + 11, escaped(bar.label));
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"#4c78a8\"/>\n",
                     kLeft, y + 16, std::max(end - kLeft, 1.0), kBar);
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#e45756\" "
      "stroke-width=\"3\"/>\n",
      limit, y + 14, y + 18 + kBar);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" fill=\"#222222\">{}</text>\n",
                     std::max(end, limit) + 6, y + 16 + 12, escaped(bar.detail));
  return svg;
}

}  // namespace

std::string bar_chart(const std::string& title, const std::vector<Bar>& bars) {
  const Axis axis(bars);
  const int bottom = kTop + static_cast<int>(bars.size()) * kRow;
  const int height = bottom + 32;
  std::string svg = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  svg += fmt::format("<text x=\"{}\" y=\"24\" font-size=\"16\" fill=\"#222222\">{}</text>\n", kLeft,
                     escaped(title));
  svg += fmt::format(
      "<text x=\"{}\" y=\"44\" fill=\"#666666\">bar: time of a call; red line: the limit measured "
      "in the same run; logarithmic</text>\n",
      kLeft);
  svg += grid(axis, bottom);
  int y = kTop;
  for (const Bar& bar : bars) {
    svg += row(axis, bar, y);
    y += kRow;
  }
  return svg + "</svg>\n";
}

}  // namespace hyla::tool
