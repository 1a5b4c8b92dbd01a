#include "testing/shared_pool.h"

#include <map>
#include <memory>
#include <mutex>

namespace hyla::testing {

ThreadPool& shared_pool(int threads) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  const std::lock_guard lock(mutex);
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

}  // namespace hyla::testing
