// The document's recurrence kernel, launched as a program of its own would launch it.
#pragma once

#include <hyla/gdn.h>

namespace hyla::testing {

// False: the kernel has no instantiation for these dims and dtypes. Tensors on the device; indices
// int32, whose negative slots the kernel sees as slots past any pool.
bool launch_documented_recurrence(const gdn::RecurrenceParams& params, void* stream);

}  // namespace hyla::testing
