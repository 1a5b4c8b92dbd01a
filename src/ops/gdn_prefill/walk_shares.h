// What the CTAs that walk for states between segments have to do, as the cost model sees it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

// So many walks over so many chunks.
struct Alike {
  double chunks = 0;
  std::int64_t count = 0;
};

// What the busiest of `ctas` takes of walks that are dealt out like that, each of which costs
// `task_us` beside its chunks.
inline double dealt_out_us(std::vector<Alike>& walks, double chunk_us, double task_us, int ctas) {
  std::sort(walks.begin(), walks.end(),
            [](const Alike& a, const Alike& b) { return a.chunks > b.chunks; });
  std::vector<double> busy(static_cast<std::size_t>(ctas), 0.0);
  std::int64_t round = 0, at = 0;
  for (const Alike& alike : walks) {
    for (std::int64_t i = 0; i < alike.count && alike.chunks > 0; ++i) {
      busy[static_cast<std::size_t>(round % 2 == 0 ? at : ctas - 1 - at)] +=
          alike.chunks * chunk_us + task_us;
      if (++at == ctas) at = 0, ++round;
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace hyla::gdn
