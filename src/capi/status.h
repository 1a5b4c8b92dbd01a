// Exceptions end here: every C function runs inside guarded().
#pragma once

#include <hyla/c_api.h>

namespace hyla::capi {

void clear_error() noexcept;
// Stores the message of the exception in flight for hyla_last_error() and gives its status.
hyla_status store_current_exception() noexcept;

template <class Call>
hyla_status guarded(const Call& call) noexcept {
  try {
    call();
  } catch (...) {
    return store_current_exception();
  }
  clear_error();
  return HYLA_OK;
}

}  // namespace hyla::capi
