// Another stream's kernel that keeps multiprocessors for itself, so that CTAs of a call find few of
// them, late and one after another. And waiting for a call that may never end.
#pragma once

#include <hyla/stream.h>

#include <cstddef>

namespace hyla::testing::cuda {

// A stream that waits for no other one.
class OwnStream {
 public:
  OwnStream();
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Stream get() const { return Stream::cuda(handle_); }

 private:
  void* handle_ = nullptr;
};

// False: it still runs after so many seconds. The thread asks and sleeps, so it never hangs itself.
bool ends_within(const Stream& stream, double seconds);

// The same for a test that has no other way out: the process ends if it does not.
void must_end(const Stream& stream, double seconds, const char* what);

// On a stream of its own, whatever other ones wait for.
void fill_beside(void* memory, int byte, std::size_t bytes);

// The second stream waits for what the first one has got so far; in a capture it joins that.
void follow(const Stream& first, const Stream& second);

struct CrowdBoard;  // in memory that host and device see

class Crowd {
 public:
  Crowd();
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Takes all multiprocessors but `left`; returns when it has them. By itself it lets them go after
  // thirty seconds: other processes may share the device.
  void hold(int left);
  // One after another, so many microseconds apart.
  void let_go(int step_us);
  // All at once, and waits for that.
  void end();
  bool holds() const;

 private:
  OwnStream stream_;
  CrowdBoard* board_ = nullptr;
};

}  // namespace hyla::testing::cuda
