#include "time_limit.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>

#include "commands.h"

namespace hyla::tool {

TimeLimit::TimeLimit(double seconds) {
  if (seconds > 0) watcher_ = std::thread([this, seconds] { watch(seconds); });
}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  if (watcher_.joinable()) watcher_.join();
}

void TimeLimit::begin(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    what_ = what;
    ++steps_;
  }
  changed_.notify_one();
}

void TimeLimit::watch(double seconds) {
  std::unique_lock lock(mutex_);
  while (!done_) {
    const int step = steps_;
    const auto moved = [&] { return done_ || steps_ != step; };
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), moved)) continue;
    if (step == 0) continue;
    fmt::print(stdout, "\nFAILED: did not end within {} s: {}\n", seconds, what_);
    std::fflush(stdout);
    std::_Exit(kCheckFailed);
  }
}

}  // namespace hyla::tool
