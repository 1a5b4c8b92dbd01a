#include <cuda_runtime.h>

#include "core/devices.h"

namespace hyla::core {

std::vector<DeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver, or none that serves us: leave no error behind
    return {};
  }
  std::vector<DeviceInfo> result;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    DeviceInfo info;
    info.device = Device::cuda(index);
    info.name = properties.name;
    info.compute_capability = properties.major * 10 + properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.memory_bytes = properties.totalGlobalMem;
    result.push_back(info);
  }
  return result;
}

}  // namespace hyla::core
