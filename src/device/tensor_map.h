// Tensor maps: how the copy engine finds tiles of a tensor in memory. Made on the host, passed to a
// kernel by value as a __grid_constant__ parameter.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <hyla/error.h>
#include <hyla/tensor.h>

#include <cstdint>
#include <string>

#include "device/alignment.h"
#include "device/launch.h"

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

namespace detail {

inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 32;
inline constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// Asked of the driver, so that the library need not be linked against it.
inline Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
  if (e != cudaSuccess) fail("tensor map", e);
  if (found != cudaDriverEntryPointSuccess) fail("tensor map", cudaErrorSymbolNotFound);
  return reinterpret_cast<Encode>(entry);
}

inline CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kFloat32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

}  // namespace detail

// Null when the copy engine can take it, otherwise why not.
inline const char* refuses_tiles(const TiledTensor& tensor) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  if (!aligned(tensor.data, 16)) return "memory that is not aligned to 16 bytes";
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] > detail::kMaxExtent) return "a dimension beyond 2^32";
    if (d == 0) continue;
    const std::int64_t bytes = tensor.strides[d - 1] * size;
    if (bytes % 16 != 0) return "strides that are not multiples of 16 bytes";
    if (bytes < 0 || bytes >= detail::kMaxStrideBytes) return "a stride beyond 2^40 bytes";
  }
  return nullptr;
}

// Throws DeviceError when the driver refuses.
inline CUtensorMap tensor_map(const TiledTensor& tensor) {
  static const detail::Encode encode = detail::find_encode();
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  cuuint64_t shape[5], strides[4];
  cuuint32_t tile[5], steps[5];
  for (int d = 0; d < tensor.rank; ++d) {
    shape[d] = static_cast<cuuint64_t>(tensor.shape[d]);
    tile[d] = static_cast<cuuint32_t>(tensor.tile[d]);
    steps[d] = 1;
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(tensor.strides[d - 1] * size);
  }
  CUtensorMap map;
  const CUresult result =
      encode(&map, detail::type_of(tensor.dtype), static_cast<cuuint32_t>(tensor.rank),
             const_cast<void*>(tensor.data), shape, strides, tile, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("tensor map: the driver refused with " + std::to_string(result),
                      static_cast<int>(result));
  }
  return map;
}

}  // namespace hyla::device
