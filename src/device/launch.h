// Launching a kernel: on the context's device and stream, with the launch attributes that the
// context asks for.
#pragma once

#include <cuda_runtime.h>
#include <hyla/context.h>

#include <string>

namespace hyla::device {

// Makes the context's device current for a scope; costs a query when it already is.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Context& context);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct LaunchShape {
  dim3 grid, block;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  // CTAs along x that share a cluster
  // May start while the grid in front of it runs, whatever the context says: our own grid, and the
  // kernel waits for it.
  bool programmatic = false;
};

// Throws DeviceError when the launch is refused; the error is cleared.
void launch(const void* kernel, const LaunchShape& shape, void** arguments, const Context& context);

template <class Arguments>
void launch(void (*kernel)(Arguments), const LaunchShape& shape, const Arguments& arguments,
            const Context& context) {
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  launch(reinterpret_cast<const void*>(kernel), shape, pointers, context);
}

int multiprocessors(const Context& context);

// Null when the device runs code built for sm_90a, otherwise why not.
const char* refuses_device(const Context& context);

[[noreturn]] void fail(const char* what, cudaError_t code);

}  // namespace hyla::device
