// What the CTAs that walk for states between segments have to do, as the cost model sees it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hyla::gdn {

// Chunks that the busiest CTA walks over, of `many` walks of `longer` and others of `shorter`
// chunks: the CTAs take turns from alternating ends, the longest walks first (walk_list.cuh).
inline double busiest_walker(double longer, double many, double shorter, double others, int ctas) {
  const auto total = static_cast<std::int64_t>(many + others);
  const auto first = static_cast<std::int64_t>(many);
  double most = 0;
  const std::int64_t edge = first % ctas, end = total % ctas;
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{ctas - 1}, edge - 1, edge,
                                ctas - edge - 1, ctas - edge, end - 1, ctas - end}) {
    if (at < 0 || at >= ctas) continue;
    double chunks = 0;
    for (std::int64_t round = 0; round * ctas < total; ++round) {
      const std::int64_t walk = round * ctas + (round % 2 == 0 ? at : ctas - 1 - at);
      if (walk < total) chunks += walk < first ? longer : shorter;
    }
    most = std::max(most, chunks);
  }
  return most;
}

}  // namespace hyla::gdn
