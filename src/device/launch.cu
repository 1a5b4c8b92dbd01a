#include "device/launch.h"

#include <array>
#include <atomic>

namespace hyla::device {
namespace {

constexpr int kMaxDevices = 64;

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

}  // namespace hyla::device
