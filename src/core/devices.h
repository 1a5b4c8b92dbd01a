// What this machine has. The CUDA half is compiled only where nvcc is.
#pragma once

#include <hyla/backend.h>

#include <vector>

namespace hyla::core {

// CUDA devices, none where the driver is missing. Never throws for a missing driver.
std::vector<DeviceInfo> cuda_devices();

}  // namespace hyla::core
