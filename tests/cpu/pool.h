// A thread pool as a caller would bring it: the context's parallel_for over plain threads.
#pragma once

#include <hyla/context.h>

#include <atomic>
#include <thread>
#include <vector>

namespace hyla::cpu_test {

// Every index on a thread of its own, the last one started first.
inline void run_on_threads(void* calls, int count, void (*body)(void*, int), void* task) {
  if (calls != nullptr) static_cast<std::atomic<int>*>(calls)->fetch_add(1);
  std::vector<std::thread> threads;
  for (int i = count - 1; i >= 0; --i) threads.emplace_back(body, task, i);
  for (std::thread& thread : threads) thread.join();
}

inline Context on_threads(int threads, std::atomic<int>* calls = nullptr) {
  Context context;
  context.threads = threads;
  context.parallel_for = run_on_threads;
  context.parallel_pool = calls;
  return context;
}

}  // namespace hyla::cpu_test
