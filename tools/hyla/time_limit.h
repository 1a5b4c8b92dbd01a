// Ends the program when one step takes too long: a kernel that does not end cannot be stopped
// otherwise.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace hyla::tool {

class TimeLimit {
 public:
  // 0 seconds: no limit.
  explicit TimeLimit(double seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  // The step that begins now, and ends with the next call.
  void begin(const std::string& what);

 private:
  void watch(double seconds);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  int steps_ = 0;
  bool done_ = false;
  std::thread watcher_;
};

}  // namespace hyla::tool
