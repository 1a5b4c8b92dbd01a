#include "cpu/parallel.h"

#include <algorithm>
#include <thread>

#include "cpu/denormals.h"

#ifdef _OPENMP
#include <omp.h>
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (int i = 0; i < count; ++i) run_one(&work, i);
}

}  // namespace hyla::cpu
