#include "threads.h"

#include <atomic>
#include <mutex>

namespace hyla::python {
namespace {

struct Setting {
  std::atomic<int> count{0};
  std::atomic<bool> pooled{false};   // so that calls on OpenMP's take no lock
  std::mutex mutex;                  // of `pool`
  std::shared_ptr<ThreadPool> pool;  // null: OpenMP's
};

Setting& setting() {
  static Setting& kept = *new Setting;  // never destroyed: a call may outlive the interpreter
  return kept;
}

}  // namespace

void set_threads(int count, bool pool) {
  // The one before ends when the last call on it does.
  auto other = pool ? std::make_shared<ThreadPool>(count) : nullptr;
  Setting& kept = setting();
  const std::lock_guard lock(kept.mutex);
  kept.pool.swap(other);
  kept.count = count;
  kept.pooled = pool;
}

int thread_count() { return setting().count.load(std::memory_order_relaxed); }
bool has_pool() { return setting().pooled.load(std::memory_order_relaxed); }

std::shared_ptr<ThreadPool> put_threads(Context& context) {
  context.threads = thread_count();
  if (!has_pool()) return nullptr;
  Setting& kept = setting();
  const std::lock_guard lock(kept.mutex);
  if (kept.pool != nullptr) context = kept.pool->on(context);
  return kept.pool;
}

}  // namespace hyla::python
