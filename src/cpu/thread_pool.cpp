#include <hyla/thread_pool.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"

namespace hyla {
namespace {

// How long a worker looks for the next call before it sleeps: longer than what lies between two
// calls of a layer, and waking it takes the caller some microseconds.
constexpr std::chrono::microseconds kPatience{100};
// How often the caller looks for the end of what others have begun before it sleeps, too.
constexpr int kLooks = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// A call at a time, in up to 64 shares, each a bit of a word until somebody takes it. So a thread
// that comes late finds either nothing or a share of whatever call there is, and what to call is
// read only by who has a share: the caller stays until that is done. A thread takes its own share if
// it is still there, so that what a call wrote is near for the next one.
class ThreadPool::Workers {
 public:
  explicit Workers(int count) : process_(getpid()) {
    threads_.reserve(static_cast<std::size_t>(count));
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { work(1 + i); });
    } catch (const std::exception&) {  // no more of them: fewer do the same work
    }
  }

  ~Workers() {
    ends_.store(true, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int count() const { return static_cast<int>(threads_.size()); }
  bool are_here() const { return process_ == getpid(); }

  void run(int count, void (*body)(void*, int), void* task) {
    if (count <= 1 || threads_.empty() || taken_.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; i < count; ++i) body(task, i);
      return;
    }
    call_ = {body, task, count, std::min(count, kMostShares)};
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t all = ~std::uint64_t{0} >> (kMostShares - call_.shares);
    shares_.store(all - 1, std::memory_order_release);  // the first is the caller's
    calls_.fetch_add(1, std::memory_order_seq_cst);
    const int asleep = asleep_.load(std::memory_order_seq_cst);
    for (int i = std::min(call_.shares - 1, asleep); i > 0; --i) calls_.notify_one();
    int own = 0;
    for (int share = 0; share >= 0; share = take(0), ++own) call_.run(share);
    int done = done_.fetch_add(own, std::memory_order_acq_rel) + own;
    for (int look = 0; done != call_.shares; ++look) {
      if (look < kLooks) {
        pause();
      } else {
        done_.wait(done, std::memory_order_acquire);
      }
      done = done_.load(std::memory_order_acquire);
    }
    taken_.store(false, std::memory_order_release);
  }

 private:
  static constexpr int kMostShares = 64;  // bits of a word
  static_assert(kMostThreads <= kMostShares);

  struct Call {
    void (*body)(void*, int);
    void* task;
    int count, shares;

    void run(int share) const {
      for (int i = share; i < count; i += shares) body(task, i);
    }
  };

  // A share that nobody else has then; -1: there is none.
  int take(int wanted) {
    std::uint64_t left = shares_.load(std::memory_order_acquire);
    while (left != 0) {
      const std::uint64_t own = std::uint64_t{1} << wanted;
      const std::uint64_t bit = (left & own) != 0 ? own : left & (~left + 1);
      if (shares_.compare_exchange_weak(left, left - bit, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        return std::countr_zero(bit);
      }
    }
    return -1;
  }

  void work(int wanted) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point last = Clock::now();
    while (true) {
      // In this order: an end that is not seen here is one more call, so that no wait follows.
      const std::uint32_t calls = calls_.load(std::memory_order_seq_cst);
      if (ends_.load(std::memory_order_acquire)) return;
      bool found = false;
      for (int share = take(wanted); share >= 0; share = take(wanted), found = true) {
        const int shares = call_.shares;
        call_.run(share);
        if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == shares) done_.notify_one();
      }
      if (found) {
        last = Clock::now();
      } else if (Clock::now() - last < kPatience) {
        pause();
      } else {
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        calls_.wait(calls, std::memory_order_seq_cst);  // returns at once if there was a call since
        asleep_.fetch_sub(1, std::memory_order_seq_cst);
        last = Clock::now();
      }
    }
  }

  // What begins a call, and in another line what ends it.
  alignas(64) std::atomic<std::uint64_t> shares_{0};
  Call call_{};
  std::atomic<std::uint32_t> calls_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> taken_{false}, ends_{false};
  alignas(64) std::atomic<int> done_{0};
  pid_t process_;
  std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(int threads) {
  if (threads < 0 || threads > kMostThreads) {
    core::fail("threads", "0 (as many as the machine has) to " + std::to_string(kMostThreads),
               std::to_string(threads));
  }
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  workers_ = std::make_unique<Workers>(std::clamp(threads, 1, kMostThreads) - 1);
}

ThreadPool::~ThreadPool() {
  if (!workers_->are_here()) workers_.release();  // threads of another process: nothing to join
}

int ThreadPool::threads() const { return workers_->count() + 1; }

Context ThreadPool::on(Context context) {
  context.threads = threads();
  context.parallel_for = run;
  context.parallel_pool = this;
  return context;
}

void ThreadPool::run(void* pool, int count, void (*body)(void*, int), void* task) {
  static_cast<ThreadPool*>(pool)->workers_->run(count, body, task);
}

}  // namespace hyla
