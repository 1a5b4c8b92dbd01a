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

template <class T, class Limits>
__device__ __forceinline__ void load(const PoolView& pool, std::int64_t offset,
                                     const Limits& limits, float (&S)[64]) {
  const T* from = static_cast<const T*>(pool.data) + offset;
  if (pool.k_stride == 1) {
    const T* from8 = from + 8 * pool.v_stride;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float2 x = {}, y = {};
      if (limits.has_first(j)) x = load_pair(from + 8 * j);
      if (limits.has_second(j)) y = load_pair(from8 + 8 * j);
      S[4 * j] = x.x, S[4 * j + 1] = x.y, S[4 * j + 2] = y.x, S[4 * j + 3] = y.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const T *x = from + 8 * j * pool.k_stride, *y = x + pool.k_stride;
    S[4 * j] = S[4 * j + 1] = S[4 * j + 2] = S[4 * j + 3] = 0.0f;
    if (limits.has_first(j)) {
      S[4 * j] = device::to_float(x[0]), S[4 * j + 1] = device::to_float(y[0]);
    }
    if (limits.has_second(j)) {
      S[4 * j + 2] = device::to_float(x[8]), S[4 * j + 3] = device::to_float(y[8]);
    }
  }
}

template <class T, class Limits>
__device__ __forceinline__ void store(const PoolView& pool, std::int64_t offset,
                                      const Limits& limits, const float (&S)[64]) {
  T* to = static_cast<T*>(pool.data) + offset;
  if (pool.k_stride == 1) {
    T* to8 = to + 8 * pool.v_stride;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      if (limits.has_first(j)) store_pair(to + 8 * j, S[4 * j], S[4 * j + 1]);
      if (limits.has_second(j)) store_pair(to8 + 8 * j, S[4 * j + 2], S[4 * j + 3]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    T *x = to + 8 * j * pool.k_stride, *y = x + pool.k_stride;
    if (limits.has_first(j)) {
      x[0] = device::from_float<T>(S[4 * j]), y[0] = device::from_float<T>(S[4 * j + 1]);
    }
    if (limits.has_second(j)) {
      x[8] = device::from_float<T>(S[4 * j + 2]), y[8] = device::from_float<T>(S[4 * j + 3]);
    }
  }
}

}  // namespace fragment

// Thread's first element: value row v, key k.
__device__ __forceinline__ std::int64_t fragment_offset(const PoolView& pool, std::int64_t slot,
                                                        int head, int v, int k) {
  return slot * pool.slot_stride + head * pool.head_stride + v * pool.v_stride + k * pool.k_stride;
}

// Which parts of a fragment are there: of block j of 8 keys, value rows v and v + 8.
struct WholeFragment {
  __device__ __forceinline__ static bool has_first(int) { return true; }
  __device__ __forceinline__ static bool has_second(int) { return true; }
};

// Of a head with fewer value rows or keys, multiples of 8: those that are not there are zero, and
// stay out of memory.
struct PartOfFragment {
  int blocks;  // of keys
  bool first, second;

  // `v`, `k`: the thread's first element.
  __device__ __forceinline__ PartOfFragment(int v, int k, int V, int K)
      : blocks((K - k + 7) / 8), first(v < V), second(v + 8 < V) {}
  __device__ __forceinline__ bool has_first(int j) const { return first && j < blocks; }
  __device__ __forceinline__ bool has_second(int j) const { return second && j < blocks; }
};

template <class Limits = WholeFragment>
__device__ __forceinline__ void load_fragment(const PoolView& pool, std::int64_t offset,
                                              float (&S)[64], const Limits& limits = {}) {
  if (pool.dtype == DType::kFloat32) return fragment::load<float>(pool, offset, limits, S);
  if (pool.dtype == DType::kBFloat16) return fragment::load<__nv_bfloat16>(pool, offset, limits, S);
  fragment::load<__half>(pool, offset, limits, S);
}

template <class Limits = WholeFragment>
__device__ __forceinline__ void store_fragment(const PoolView& pool, std::int64_t offset,
                                               const float (&S)[64], const Limits& limits = {}) {
  if (pool.dtype == DType::kFloat32) return fragment::store<float>(pool, offset, limits, S);
  if (pool.dtype == DType::kBFloat16) {
    return fragment::store<__nv_bfloat16>(pool, offset, limits, S);
  }
  fragment::store<__half>(pool, offset, limits, S);
}

}  // namespace hyla::gdn
