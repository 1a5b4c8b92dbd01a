// Threads for calls on a CPU, in place of OpenMP's. OpenMP divides a call among all threads and
// waits for each of them, so on a machine whose cores others use too a call of microseconds takes a
// time slice of the scheduler. Here the caller works too, takes over what no thread has begun, and
// waits for what one has.
#ifndef HYLA_THREAD_POOL_H_
#define HYLA_THREAD_POOL_H_

#include <hyla/context.h>
#include <hyla/export.h>

#include <memory>

namespace hyla {

// Calls from several threads at the same time are right; the second works alone meanwhile, and so
// does a child after fork(), which has no threads but the one that forked.
class ThreadPool {
 public:
  static constexpr int kMostThreads = 64;

  // As many threads for a call, its caller among them; 0: as many as the machine has, up to
  // kMostThreads. Where the system refuses some, there are fewer.
  HYLA_API explicit ThreadPool(int threads = 0);
  // No call may be running.
  HYLA_API ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  HYLA_API int threads() const;
  // The same context, on these threads.
  HYLA_API Context on(Context context = {});

  // A ParallelFor: `pool` is a ThreadPool.
  HYLA_API static void run(void* pool, int count, void (*body)(void* task, int i), void* task);

 private:
  class Workers;
  std::unique_ptr<Workers> workers_;
};

}  // namespace hyla

#endif  // HYLA_THREAD_POOL_H_
