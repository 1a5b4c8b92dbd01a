// Times of several pieces of work that are run in turn: what slows a machine down for a while, or
// makes it faster, does so to all of them, and their ratios stay.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace hyla::testing {

struct Turns {
  std::vector<std::vector<double>> us;  // of each piece of work, one for each turn

  double median_us(std::size_t work) const;
  double best_us(std::size_t work) const;
  // The median over all turns of one's time by the other's, in the same turn.
  double ratio(std::size_t work, std::size_t other) const;
};

// A turn runs each piece of work for at least a millisecond, and at least a quarter of what the
// first one takes: its time is the median, without the first call where there were others, so that
// small work finds its own data in the caches. Turns go on until the first one was at work for
// `seconds` and had five of them; three are enough where that takes ten times as long.
Turns time_in_turn(const std::vector<std::function<void()>>& work, double seconds);

}  // namespace hyla::testing
