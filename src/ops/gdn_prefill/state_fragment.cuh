// The state of a head between memory and the accumulators of a warpgroup: S^T, 64 value rows by
// 128 keys. A thread holds value rows v and v + 8, keys 8 j + k and the one after, j = 0 ... 15.
#pragma once

#include "device/dtype.cuh"
#include "problem/gdn.h"

namespace hyla::gdn {

namespace fragment {

template <class T>
__device__ __forceinline__ float2 load_pair(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(from);
  } else {
    return make_float2(device::to_float(from[0]), device::to_float(from[1]));
  }
}

template <class T>
__device__ __forceinline__ void store_pair(T* to, float x, float y) {
  device::Pack<T, 2> pack;
  const float values[2] = {x, y};
  pack.pack(values);
  pack.store(to);
}

template <class T>
__device__ __forceinline__ void load(const PoolView& pool, std::int64_t offset, float (&S)[64]) {
  const T* from = static_cast<const T*>(pool.data) + offset;
  if (pool.k_stride == 1) {
    const T* from8 = from + 8 * pool.v_stride;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 x = load_pair(from + 8 * j), y = load_pair(from8 + 8 * j);
      S[4 * j] = x.x, S[4 * j + 1] = x.y, S[4 * j + 2] = y.x, S[4 * j + 3] = y.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const T *x = from + 8 * j * pool.k_stride, *y = x + pool.k_stride;
    S[4 * j] = device::to_float(x[0]), S[4 * j + 1] = device::to_float(y[0]);
    S[4 * j + 2] = device::to_float(x[8]), S[4 * j + 3] = device::to_float(y[8]);
  }
}

template <class T>
__device__ __forceinline__ void store(const PoolView& pool, std::int64_t offset,
                                      const float (&S)[64]) {
  T* to = static_cast<T*>(pool.data) + offset;
  if (pool.k_stride == 1) {
    T* to8 = to + 8 * pool.v_stride;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      store_pair(to + 8 * j, S[4 * j], S[4 * j + 1]);
      store_pair(to8 + 8 * j, S[4 * j + 2], S[4 * j + 3]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    T *x = to + 8 * j * pool.k_stride, *y = x + pool.k_stride;
    x[0] = device::from_float<T>(S[4 * j]), y[0] = device::from_float<T>(S[4 * j + 1]);
    x[8] = device::from_float<T>(S[4 * j + 2]), y[8] = device::from_float<T>(S[4 * j + 3]);
  }
}

}  // namespace fragment

// Thread's first element: value row v, key k.
__device__ __forceinline__ std::int64_t fragment_offset(const PoolView& pool, std::int64_t slot,
                                                        int head, int v, int k) {
  return slot * pool.slot_stride + head * pool.head_stride + v * pool.v_stride + k * pool.k_stride;
}

__device__ __forceinline__ void load_fragment(const PoolView& pool, std::int64_t offset,
                                              float (&S)[64]) {
  if (pool.dtype == DType::kFloat32) return fragment::load<float>(pool, offset, S);
  if (pool.dtype == DType::kBFloat16) return fragment::load<__nv_bfloat16>(pool, offset, S);
  fragment::load<__half>(pool, offset, S);
}

__device__ __forceinline__ void store_fragment(const PoolView& pool, std::int64_t offset,
                                               const float (&S)[64]) {
  if (pool.dtype == DType::kFloat32) return fragment::store<float>(pool, offset, S);
  if (pool.dtype == DType::kBFloat16) return fragment::store<__nv_bfloat16>(pool, offset, S);
  fragment::store<__half>(pool, offset, S);
}

// The same of a head with fewer value rows or keys than the fragment: those that are not there are
// zero, and stay out of memory. `v`, `k`: the thread's first element.
struct FragmentLimits {
  int v, k, V, K;

  // Of element i.
  __device__ __forceinline__ bool has(int i) const { return row(i) < V && key(i) < K; }
  __device__ __forceinline__ int row(int i) const { return v + (i >> 1 & 1) * 8; }
  __device__ __forceinline__ int key(int i) const { return k + (i >> 2) * 8 + (i & 1); }
  __device__ __forceinline__ std::int64_t offset(const PoolView& pool, int i) const {
    return (row(i) - v) * pool.v_stride + (key(i) - k) * pool.k_stride;
  }
};

__device__ __forceinline__ void load_fragment(const PoolView& pool, std::int64_t offset,
                                              const FragmentLimits& limits, float (&S)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    S[i] = 0.0f;
    if (limits.has(i)) {
      S[i] = device::load_number(pool.data, pool.dtype, offset + limits.offset(pool, i));
    }
  }
}

__device__ __forceinline__ void store_fragment(const PoolView& pool, std::int64_t offset,
                                               const FragmentLimits& limits, const float (&S)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    if (limits.has(i)) {
      device::store_number(pool.data, pool.dtype, offset + limits.offset(pool, i), S[i]);
    }
  }
}

}  // namespace hyla::gdn
