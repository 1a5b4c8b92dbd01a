// Tensor maps: how the copy engine finds tiles of a tensor in memory. Made on the host, passed to a
// kernel by value as a __grid_constant__ parameter.
#pragma once

#include <cuda.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::device {

// Up to five dimensions, the contiguous one first; strides in elements, that of the first left out.
// Tiles lie in shared memory under the 128-byte swizzle; elements outside the tensor read as zero
// and are not written.
struct TiledTensor {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  int rank = 0;
  std::int64_t shape[5] = {};
  std::int64_t strides[4] = {};  // of dimensions 1, 2, ...
  int tile[5] = {};
};

// Null when the copy engine can take it, otherwise why not.
const char* refuses_tiles(const TiledTensor& tensor);

// Throws DeviceError when the driver refuses.
CUtensorMap tensor_map(const TiledTensor& tensor);

}  // namespace hyla::device
