// Pools of threads for the problems of a process, which want one with so many.
#pragma once

#include <hyla/thread_pool.h>

namespace hyla::testing {

// One a number of threads, for the rest of the process; 0: as many as the machine has.
ThreadPool& shared_pool(int threads);

}  // namespace hyla::testing
