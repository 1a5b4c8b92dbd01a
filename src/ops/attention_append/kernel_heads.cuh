// Appends what has to be rotated, quantised or converted: a warp a head, in float64, so that every
// number is rounded once.
#pragma once

#include <cuda_fp8.h>

#include "arch/grid_dependency.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/attention_append/quotients.cuh"
#include "ops/attention_append/tokens.cuh"

namespace hyla::attention::appending {

inline constexpr int kMaxDim = 576;

__device__ inline void store(const CacheTensor& to, std::int64_t offset, double x) {
  switch (to.dtype) {
    case DType::kFloat32:
      static_cast<float*>(to.data)[offset] = static_cast<float>(x);
      break;
    case DType::kFloat8E4M3:
      static_cast<__nv_fp8_storage_t*>(to.data)[offset] =
          __nv_cvt_float_to_fp8(round_to_odd(x), __NV_SATFINITE, __NV_E4M3);
      break;
    case DType::kInt8:
      static_cast<std::int8_t*>(to.data)[offset] =
          static_cast<std::int8_t>(fmin(fmax(rint(x), -127.0), 127.0));
      break;
    default:
      device::store_number(to.data, to.dtype, offset, round_to_odd(x));
  }
}

// One head of a token in a warp; `values` is the head as float.
struct Head {
  const Arguments& a;
  const float* values;
  std::int64_t position;  // < 0: not rotated

  __device__ double rotated(int d) const {
    const TensorView &cos = a.problem.cos, &sin = a.problem.sin;
    const int half = position < 0 ? 0 : static_cast<int>(cos.shape[1]);
    if (d >= 2 * half) return values[d];
    const int i = a.problem.interleaved ? d / 2 : d % half;
    const int first = a.problem.interleaved ? 2 * i : i;
    const double x = values[first], y = values[first + (a.problem.interleaved ? 1 : half)];
    const double c =
        static_cast<const float*>(cos.data)[position * cos.strides[0] + i * cos.strides[1]];
    const double s =
        static_cast<const float*>(sin.data)[position * sin.strides[0] + i * sin.strides[1]];
    return d == first ? x * c - y * s : y * c + x * s;
  }

  __device__ void write(const CacheTensor& to, const CacheTensor& scales, const Place& place,
                        std::int64_t head, int lane) const {
    const std::int64_t base = to.offset(place, head);
    const int dim = static_cast<int>(to.width);
    const int runs = scales.present() ? static_cast<int>(scales.width) : 1, run = dim / runs;
    for (int r = 0; r < runs; ++r) {
      double scale = 1;
      const auto stored = [&] {
        return static_cast<float*>(scales.data) + scales.offset(place, head) +
               r * scales.inner_stride;
      };
      if (a.problem.given_scales) {
        scale = *stored();
      } else if (scales.present()) {
        double largest = 0;
        for (int d = r * run + lane; d < (r + 1) * run; d += 32) {
          largest = fmax(largest, fabs(rotated(d)));
        }
        for (int step = 16; step > 0; step /= 2) {
          largest = fmax(largest, __shfl_xor_sync(device::kFullWarp, largest, step));
        }
        scale = static_cast<float>(largest / (to.dtype == DType::kInt8 ? 127.0 : 448.0));
        if (lane == 0) *stored() = static_cast<float>(scale);
      }
      for (int d = r * run + lane; d < (r + 1) * run; d += 32) {
        store(to, base + d, scale == 0 ? 0.0 : rotated(d) / scale);
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads) append_heads(const __grid_constant__ Arguments a) {
  __shared__ TokenTile tile;
  __shared__ float values[kWarps][kMaxDim];
  arch::wait_for_previous_grid();
  find_tokens(a, tile);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const auto heads = static_cast<int>(a.problem.heads);
  const int kinds = a.problem.value_dim > 0 ? 2 : 1;
  for (int i = warp; i < tile.count * heads * kinds; i += kWarps) {
    const int token = i / (heads * kinds), head = i / kinds % heads;
    const bool is_key = i % kinds == 0;
    if (!tile.places[token].somewhere()) continue;
    const TensorView& from = is_key ? a.problem.k : a.problem.v;
    const std::int64_t offset = (tile.first + token) * from.strides[0] + head * from.strides[1];
    __syncwarp();
    for (int d = lane; d < from.shape[2]; d += 32) {
      values[warp][d] = device::load_number(from.data, from.dtype, offset + d);
    }
    __syncwarp();
    // Positions that the tables do not have are not rotated.
    const std::int64_t position = tile.positions[token];
    const bool rotates = is_key && a.problem.cos.dtype != DType::kNone && position >= 0 &&
                         position < a.problem.cos.shape[0];
    const Head one{a, values[warp], rotates ? position : -1};
    one.write(is_key ? a.k : a.v, is_key ? a.k_scales : a.v_scales, tile.places[token], head, lane);
  }
}

}  // namespace hyla::attention::appending
