// What the CUDA runtime answers, as an exception. For .cu files.
#pragma once

#include <cuda_runtime.h>
#include <hyla/error.h>

#include <string>

namespace hyla::testing::cuda {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string("device: ") + what + ": " + cudaGetErrorString(code), code);
}

}  // namespace hyla::testing::cuda
