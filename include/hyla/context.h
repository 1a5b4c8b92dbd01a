// Where and how a call runs. There is no global state: every call names its context.
#ifndef HYLA_CONTEXT_H_
#define HYLA_CONTEXT_H_

#include <hyla/stream.h>
#include <hyla/tensor.h>

namespace hyla {

// A caller's own thread pool: calls body(task, i) for every i in [0, count), some of them at the
// same time, and returns when all are done.
using ParallelFor = void (*)(void* pool, int count, void (*body)(void* task, int i), void* task);

struct Context {
  Device device{};               // all tensors of the call live here
  Stream stream{};               // required on a GPU
  int threads = 0;               // CPU: 0 = as many as the machine has; results never depend on it
  bool batch_invariant = false;  // a row's bits depend on nothing but the row, heads and dims
  bool programmatic_launch = false;    // GPU: programmatic dependent launch
  ParallelFor parallel_for = nullptr;  // CPU: absent: OpenMP where the library was built with it
  void* parallel_pool = nullptr;       // handed to parallel_for
};

}  // namespace hyla

#endif  // HYLA_CONTEXT_H_
