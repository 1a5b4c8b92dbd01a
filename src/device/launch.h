// Launching a kernel: on the context's device and stream, with the launch attributes that the
// context asks for. Inline, because a kernel is launched by the CUDA runtime of the program part
// that contains it, which may be a user's.
#pragma once

#include <cuda_runtime.h>
#include <hyla/context.h>
#include <hyla/error.h>

#include <string>

#include "device/shared_memory.h"

namespace hyla::device {

// The error is cleared.
[[noreturn]] inline void fail(const char* what, cudaError_t code) {
  cudaGetLastError();
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(code), static_cast<int>(code));
}

// Makes the context's device current for a scope; costs a query when it already is.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Context& context) {
    if (cudaError_t e = cudaGetDevice(&before_); e != cudaSuccess) fail("context.device", e);
    if (before_ == context.device.index) return;
    if (cudaError_t e = cudaSetDevice(context.device.index); e != cudaSuccess) {
      fail("context.device", e);
    }
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
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

// Throws DeviceError when the launch is refused.
inline void launch(const void* kernel, const LaunchShape& shape, void** arguments,
                   const Context& context) {
  constexpr unsigned kUsualSharedBytes = 48 << 10;  // a kernel gets them without asking
  const DeviceGuard guard(context);
  const bool asks = shape.shared_bytes > kUsualSharedBytes;
  SharedMemoryLeave& leave = shared_memory_leave();
  cudaError_t e = cudaSuccess;
  if (asks) e = leave.ask(kernel, context.device.index, shape.shared_bytes);
  if (e != cudaSuccess) fail("kernel launch", e);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(context.stream.handle());
  config.attrs = attributes;
  if (context.programmatic_launch || shape.programmatic) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  e = cudaLaunchKernelExC(&config, kernel, arguments);
  if (asks && e == cudaErrorInvalidValue &&
      leave.ask_again(kernel, context.device.index, shape.shared_bytes) == cudaSuccess) {
    cudaGetLastError();
    e = cudaLaunchKernelExC(&config, kernel, arguments);
  }
  if (e != cudaSuccess) fail("kernel launch", e);
}

template <class Arguments>
void launch(void (*kernel)(Arguments), const LaunchShape& shape, const Arguments& arguments,
            const Context& context) {
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  launch(reinterpret_cast<const void*>(kernel), shape, pointers, context);
}

int multiprocessors(const Context& context);

// Null when the device runs code built for sm_90a, otherwise why not.
const char* refuses_device(const Context& context);

}  // namespace hyla::device
