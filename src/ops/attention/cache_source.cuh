// A cache of any kind and dtype as a Source of the rows kernel.
#pragma once

#include <cuda_fp8.h>
#include <hyla/attention_rows_kernel.h>

#include "device/alignment.h"
#include "device/dtype.cuh"
#include "ops/attention/cache_places.h"

namespace hyla::attention {

struct CacheSource {
  static constexpr bool kPerToken = false;

  CachePlaces places;
  CacheTensor k, v, k_scales, v_scales;
  bool wide = false;  // eight values are one aligned access

  explicit CacheSource(const CacheView& cache)
      : places(cache),
        k(cache.k, cache.kind),
        v(cache.v, cache.kind),
        k_scales(cache.k_scales, cache.kind),
        v_scales(cache.v_scales, cache.kind),
        wide(aligned(k) && aligned(v)) {}

  __device__ std::int64_t key_count(const Queries&, std::int64_t row) const {
    return places.length(row);
  }
  __device__ bool has(std::int64_t row, std::int64_t, std::int64_t key) const {
    return places.place(row, key).somewhere();
  }
  __device__ void load_k(std::int64_t row, std::int64_t, std::int64_t key, std::int64_t head, int d,
                         float (&x)[8]) const {
    load(k, k_scales, places.place(row, key), head, d, x);
  }
  __device__ void load_v(std::int64_t row, std::int64_t, std::int64_t key, std::int64_t head, int d,
                         float (&x)[8]) const {
    load(v, v_scales, places.place(row, key), head, d, x);
  }

 private:
  static bool aligned(const CacheTensor& tensor) {
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    const std::int64_t bytes = size == 1 ? 8 : 16;
    return device::aligned(tensor.data, bytes) && tensor.outer_stride * size % bytes == 0 &&
           tensor.token_stride * size % bytes == 0 && tensor.head_stride * size % bytes == 0;
  }

  static __device__ float stored(const CacheTensor& tensor, std::int64_t offset) {
    if (tensor.dtype == DType::kFloat8E4M3) {
      return static_cast<float>(static_cast<const __nv_fp8_e4m3*>(tensor.data)[offset]);
    }
    if (tensor.dtype == DType::kInt8) {
      return static_cast<float>(static_cast<const std::int8_t*>(tensor.data)[offset]);
    }
    return device::load_number(tensor.data, tensor.dtype, offset);
  }

  __device__ void load(const CacheTensor& values, const CacheTensor& scales, const Place& at,
                       std::int64_t head, int d, float (&x)[8]) const {
    const std::int64_t offset = values.offset(at, head) + d;
    if (size_of(values.dtype) == 1 || !wide) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = stored(values, offset + i);
    } else {
      device::load_wide(values.data, values.dtype, offset, x);
    }
    if (!scales.present()) return;
    const std::int64_t run = values.width / scales.width;
    const float* scale = static_cast<const float*>(scales.data) + scales.offset(at, head);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= scale[(d + i) / run * scales.inner_stride];
  }
};

}  // namespace hyla::attention
