// On a GPU nobody sees the slots and pages of a call before its kernels do: a slot past the pool is
// null there, and a page that does not exist holds zeros and is not written.
#pragma once

#include "testing/call.h"

namespace hyla::testing {

// The call with its null slots beyond the pool instead, and its pages of zeros nowhere: on a GPU it
// has the same result. Of append some pages are nowhere, and all others have the same result.
Call lose_slots(const Call& call);

// Of a result of `lost`, which came from `call`: the slots and pages as they were, unless something
// wrote there. The pages that an append has lost hold what the reference writes to them, unless
// something else was written there.
void find_slots(Call& result, const Call& lost, const Call& call);

}  // namespace hyla::testing
