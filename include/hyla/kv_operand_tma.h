// From the specification of a TMA tile (kv_tile.h) to the tensor map that a kernel takes as a
// __grid_constant__ parameter. Needs the CUDA toolkit; the driver is asked at run time, so nothing
// more is linked.
#ifndef HYLA_KV_OPERAND_TMA_H_
#define HYLA_KV_OPERAND_TMA_H_

#include <hyla/error.h>
#include <hyla/kv_tile.h>

#include <string>

#if defined(__CUDACC__)
#include <cuda.h>
#include <cuda_runtime.h>

namespace hyla::attention {
namespace detail {

inline CUtensorMapDataType map_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kBFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

inline CUtensorMapSwizzle map_swizzle(TensorMapSwizzle swizzle) {
  switch (swizzle) {
    case TensorMapSwizzle::k32B:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case TensorMapSwizzle::k64B:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case TensorMapSwizzle::k128B:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

inline CUtensorMapL2promotion map_promotion(TensorMapL2Promotion promotion) {
  switch (promotion) {
    case TensorMapL2Promotion::k64B:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
    case TensorMapL2Promotion::k128B:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    case TensorMapL2Promotion::k256B:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    default:
      return CU_TENSOR_MAP_L2_PROMOTION_NONE;
  }
}

inline auto map_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kVersion = 12000;  // the release that brought it
  const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, kVersion,
                                                         cudaEnableDefault, &found);
  if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    throw DeviceError("tensor map: the driver has no cuTensorMapEncodeTiled", static_cast<int>(e));
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
}

}  // namespace detail

// Throws DeviceError when the hardware or the driver refuses; why_not_encodable says it beforehand.
inline CUtensorMap encode(const TmaTileSpec& spec) {
  static const auto encoder = detail::map_encoder();
  if (const char* reason = why_not_encodable(spec); reason != nullptr) {
    throw DeviceError(std::string("tensor map: ") + reason, CUDA_ERROR_INVALID_VALUE);
  }
  cuuint64_t dims[TmaTileSpec::kMaxRank] = {}, strides[TmaTileSpec::kMaxRank] = {};
  cuuint32_t box[TmaTileSpec::kMaxRank] = {}, steps[TmaTileSpec::kMaxRank] = {};
  for (int d = 0; d < spec.rank; ++d) {
    dims[d] = spec.dims[d];
    box[d] = spec.box[d];
    steps[d] = 1;
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(spec.strides[d]);
  }
  CUtensorMap map;
  const CUresult result =
      encoder(&map, detail::map_type(spec.dtype), static_cast<cuuint32_t>(spec.rank),
              const_cast<void*>(spec.base), dims, strides, box, steps,
              CU_TENSOR_MAP_INTERLEAVE_NONE, detail::map_swizzle(spec.swizzle),
              detail::map_promotion(spec.l2_promotion), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("tensor map: the driver refused with " + std::to_string(result),
                      static_cast<int>(result));
  }
  return map;
}

}  // namespace hyla::attention
#endif

#endif  // HYLA_KV_OPERAND_TMA_H_
