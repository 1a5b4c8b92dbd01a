// hyla.set_num_threads: the one setting that the package keeps.
#pragma once

#include <atomic>

namespace hyla::python {

std::atomic<int>& thread_count();

}  // namespace hyla::python
