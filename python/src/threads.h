// hyla.set_num_threads: the one setting that the package keeps.
#pragma once

#include <hyla/thread_pool.h>

#include <memory>

namespace hyla::python {

// `pool`: threads of hyla's own in place of OpenMP's.
void set_threads(int count, bool pool);
int thread_count();  // as it was set
bool has_pool();

// Threads of a call, and what must live as long as it.
std::shared_ptr<ThreadPool> put_threads(Context& context);

}  // namespace hyla::python
