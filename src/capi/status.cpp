#include "capi/status.h"

#include <hyla/backend.h>
#include <hyla/error.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

namespace hyla::capi {
namespace {

// A plain array: storing a message must not fail, whatever has gone wrong.
thread_local char last_error[2048];

void store(const char* message) noexcept {
  const std::size_t length = std::min(std::strlen(message), sizeof last_error - 1);
  std::memcpy(last_error, message, length);
  last_error[length] = '\0';
}

hyla_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return HYLA_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return HYLA_UNSUPPORTED;
    case ErrorCode::kWorkspaceTooSmall:
      return HYLA_WORKSPACE_TOO_SMALL;
    case ErrorCode::kDeviceError:
      return HYLA_DEVICE_ERROR;
    case ErrorCode::kOk:
    case ErrorCode::kInternal:
      break;
  }
  return HYLA_INTERNAL;
}

}  // namespace

void clear_error() noexcept { last_error[0] = '\0'; }

hyla_status store_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    store(error.what());
    return status_of(error.code());
  } catch (const std::bad_alloc&) {
    store("out of memory");
  } catch (const std::exception& error) {
    store(error.what());
  } catch (...) {
    store("an exception of unknown type");
  }
  return HYLA_INTERNAL;
}

}  // namespace hyla::capi

extern "C" {

const char* hyla_last_error(void) { return hyla::capi::last_error; }

uint32_t hyla_abi_version(void) { return HYLA_ABI_VERSION; }

const char* hyla_version(void) { return hyla::version(); }

const char* hyla_status_name(int32_t status) {
  switch (status) {
    case HYLA_OK:
      return "ok";
    case HYLA_INVALID_ARGUMENT:
      return "invalid_argument";
    case HYLA_UNSUPPORTED:
      return "unsupported";
    case HYLA_WORKSPACE_TOO_SMALL:
      return "workspace_too_small";
    case HYLA_DEVICE_ERROR:
      return "device_error";
    case HYLA_INTERNAL:
      return "internal";
    default:
      return "unknown";
  }
}

}  // extern "C"
