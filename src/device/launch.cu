#include "device/launch.h"

#include <hyla/error.h>

#include <array>
#include <atomic>

namespace hyla::device {
namespace {

constexpr int kMaxDevices = 64;
constexpr unsigned kUsualSharedBytes = 48 << 10;  // a kernel gets them without asking

using Known = std::array<std::atomic<int>, kMaxDevices>;  // 0: not asked yet

// major * 10 + minor, asked once a device.
int compute_capability(int index) {
  static Known known{};
  if (index < 0 || index >= kMaxDevices) return 0;
  int value = known[static_cast<std::size_t>(index)].load(std::memory_order_relaxed);
  if (value != 0) return value;
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  value = major * 10 + minor;
  known[static_cast<std::size_t>(index)].store(value, std::memory_order_relaxed);
  return value;
}

}  // namespace

void fail(const char* what, cudaError_t code) {
  cudaGetLastError();
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(code), static_cast<int>(code));
}

DeviceGuard::DeviceGuard(const Context& context) {
  if (cudaError_t e = cudaGetDevice(&before_); e != cudaSuccess) fail("context.device", e);
  if (before_ == context.device.index) return;
  if (cudaError_t e = cudaSetDevice(context.device.index); e != cudaSuccess) {
    fail("context.device", e);
  }
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(before_);
}

const char* refuses_device(const Context& context) {
  const int capability = compute_capability(context.device.index);
  if (capability == 0) return "there is no such CUDA device";
  return capability == 90 ? nullptr : "needs a device of compute capability 9.0";
}

int multiprocessors(const Context& context) {
  static Known known{};
  const int index = context.device.index;
  const bool cached = index >= 0 && index < kMaxDevices;
  if (cached) {
    const int value = known[static_cast<std::size_t>(index)].load(std::memory_order_relaxed);
    if (value != 0) return value;
  }
  int value = 0;
  if (cudaError_t e = cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, index);
      e != cudaSuccess) {
    fail("context.device", e);
  }
  if (cached) known[static_cast<std::size_t>(index)].store(value, std::memory_order_relaxed);
  return value;
}

void launch(const void* kernel, const LaunchShape& shape, void** arguments,
            const Context& context) {
  const DeviceGuard guard(context);
  if (shape.shared_bytes > kUsualSharedBytes) {
    if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(shape.shared_bytes));
        e != cudaSuccess) {
      fail("kernel launch", e);
    }
  }
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
  if (cudaError_t e = cudaLaunchKernelExC(&config, kernel, arguments); e != cudaSuccess) {
    fail("kernel launch", e);
  }
}

}  // namespace hyla::device
