#include "testing/threads_of.h"

#include <hyla/thread_pool.h>

#include <map>
#include <memory>
#include <mutex>

namespace hyla::testing {
namespace {

ThreadPool& shared_pool(int threads) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  const std::lock_guard lock(mutex);
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

}  // namespace

Context on_threads_of(const ProblemSpec& spec) {
  Context context;
  context.threads = static_cast<int>(spec.threads);
  return spec.pool ? shared_pool(context.threads).on(context) : context;
}

}  // namespace hyla::testing
