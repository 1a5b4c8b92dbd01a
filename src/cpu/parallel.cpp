#include "cpu/parallel.h"

#include <algorithm>
#include <thread>

#include "cpu/denormals.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace hyla::cpu {
namespace {

struct Work {
  void (*body)(void*, int);
  void* task;
};

void run_one(void* work, int i) {
  const FlushDenormals flush;
  const Work& w = *static_cast<const Work*>(work);
  w.body(w.task, i);
}

#ifdef _OPENMP
// A thread that has OpenMP's threads waiting for its next parallel loop takes them along when it
// forks, but they are not there in the child: a loop would wait for them for ever.
thread_local bool has_team = false, lost_team = false;

void lose_team() { lost_team = has_team; }

bool can_share_work() {
  if (lost_team) return false;
  static const int watched = pthread_atfork(nullptr, nullptr, lose_team);
  has_team = true;
  return watched == 0;
}
#endif

}  // namespace

int thread_count(const Context& context) {
  if (context.threads > 0) return context.threads;
#ifdef _OPENMP
  if (context.parallel_for == nullptr) return std::max(1, omp_get_max_threads());
#else
  if (context.parallel_for == nullptr) return 1;
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(const Context& context, int count, void (*body)(void*, int), void* task) {
  Work work{body, task};
  if (count <= 1) {
    if (count == 1) run_one(&work, 0);
    return;
  }
  if (context.parallel_for != nullptr) {
    context.parallel_for(context.parallel_pool, count, run_one, &work);
    return;
  }
#ifdef _OPENMP
  const int threads = std::min(count, thread_count(context));
  if (threads > 1 && can_share_work()) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int i = 0; i < count; ++i) run_one(&work, i);
    return;
  }
#endif
  for (int i = 0; i < count; ++i) run_one(&work, i);
}

}  // namespace hyla::cpu
