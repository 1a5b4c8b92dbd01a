#include "testing/turns.h"

#include <algorithm>
#include <chrono>

#include "testing/median.h"

namespace hyla::testing {
namespace {

constexpr double kTurnUs = 1000, kShareOfFirst = 0.25;
constexpr std::size_t kTurns = 5, kLeastTurns = 3, kMostTurns = 1000;
constexpr double kPatience = 10;

struct Turn {
  double us = 0, spent_us = 0;
};

Turn run_turn(const std::function<void()>& work, double least_us) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto begin = Clock::now();
  double spent = 0;
  while (times.empty() || spent < least_us) {
    const double before = spent;
    work();
    spent = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    times.push_back(spent - before);
  }
  if (times.size() > 1) times.erase(times.begin());
  return {median(times), spent};
}

}  // namespace

double Turns::median_us(std::size_t work) const { return median(us[work]); }

double Turns::best_us(std::size_t work) const {
  return *std::min_element(us[work].begin(), us[work].end());
}

double Turns::ratio(std::size_t work, std::size_t other) const {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < us[work].size(); ++turn) {
    ratios.push_back(us[work][turn] / us[other][turn]);
  }
  return median(ratios);
}

Turns time_in_turn(const std::vector<std::function<void()>>& work, double seconds) {
  Turns turns;
  turns.us.resize(work.size());
  for (const auto& each : work) each();
  double spent = 0;
  const auto enough = [&](std::size_t count) {
    if (count >= kTurns) return spent >= seconds * 1e6;
    return count >= kLeastTurns && spent >= kPatience * seconds * 1e6;
  };
  for (std::size_t count = 0; count < kMostTurns && !enough(count); ++count) {
    double least = kTurnUs;
    for (std::size_t i = 0; i < work.size(); ++i) {
      const Turn turn = run_turn(work[i], least);
      turns.us[i].push_back(turn.us);
      if (i == 0) spent += turn.spent_us, least = std::max(least, kShareOfFirst * turn.us);
    }
  }
  return turns;
}

}  // namespace hyla::testing
