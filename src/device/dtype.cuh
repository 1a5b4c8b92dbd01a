// Storage types in registers: 16-byte chunks and single elements, to and from float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::device {

template <class T>
inline constexpr int kPerChunk = 16 / sizeof(T);  // elements of a 16-byte access

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// `Bytes` of T as raw words, loaded and stored in accesses as wide as their size allows.
template <class T, int Count>
struct Pack {
  static constexpr int kBytes = Count * static_cast<int>(sizeof(T));
  static constexpr int kWords = kBytes / 4;
  static_assert(kBytes % 4 == 0);
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const void* from) {
    if constexpr (kBytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 x = static_cast<const uint4*>(from)[i];
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
      }
    } else if constexpr (kBytes % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) {
        const uint2 x = static_cast<const uint2*>(from)[i];
        words[2 * i] = x.x, words[2 * i + 1] = x.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = static_cast<const std::uint32_t*>(from)[i];
    }
  }
  // 16-byte accesses, or nothing and no particular value. Not a branch: what stands behind a branch
  // waits for all that the branch waits for, and the compiler moves earlier loads there, too.
  __device__ __forceinline__ void load_if(bool condition, const void* from) {
    static_assert(kBytes % 16 == 0);
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile(
          "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
          " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
          : "l"(static_cast<const std::uint32_t*>(from) + i), "r"(static_cast<int>(condition)));
    }
  }
  __device__ __forceinline__ void load_unaligned(const T* from) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
    } else {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = halves[2 * i] | static_cast<std::uint32_t>(halves[2 * i + 1]) << 16;
      }
    }
  }
  __device__ __forceinline__ void store(void* to) const {
    if constexpr (kBytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        static_cast<uint4*>(to)[i] =
            make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
      }
    } else if constexpr (kBytes % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) {
        static_cast<uint2*>(to)[i] = make_uint2(words[2 * i], words[2 * i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) static_cast<std::uint32_t*>(to)[i] = words[i];
    }
  }

  __device__ __forceinline__ void unpack(float (&x)[Count]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < Count; ++i) x[i] = __uint_as_float(words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) {
        const float2 pair = unpack_pair(words[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void pack(const float (&x)[Count]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < Count; ++i) words[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) words[i] = pack_pair(x[2 * i], x[2 * i + 1]);
    }
  }

 private:
  static __device__ __forceinline__ float2 unpack_pair(std::uint32_t word) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    } else {
      return __half22float2(reinterpret_cast<const __half2&>(word));
    }
  }
  static __device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      return reinterpret_cast<const std::uint32_t&>(pair);
    } else {
      const __half2 pair = __floats2half2_rn(low, high);
      return reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
};

// One element whose dtype is known only at run time: uniform over a grid, so the branch is cheap.
// Loading the bits and reading them as a number are two steps, so that a load need not be waited
// for where it is asked for.
__device__ __forceinline__ std::uint32_t load_bits(const void* data, DType dtype,
                                                   std::int64_t offset) {
  if (dtype == DType::kFloat32) return static_cast<const std::uint32_t*>(data)[offset];
  return static_cast<const std::uint16_t*>(data)[offset];
}

__device__ __forceinline__ float number(std::uint32_t bits, DType dtype) {
  if (dtype == DType::kFloat32) return __uint_as_float(bits);
  if (dtype == DType::kBFloat16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ float load_number(const void* data, DType dtype, std::int64_t offset) {
  return number(load_bits(data, dtype, offset), dtype);
}

// N of them, `stride` apart: one branch on the dtype for all.
template <int N>
__device__ __forceinline__ void load_numbers(const void* data, DType dtype, std::int64_t offset,
                                             std::int64_t stride, float (&values)[N]) {
  if (dtype == DType::kFloat32) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = static_cast<const float*>(data)[offset + i * stride];
    return;
  }
  std::uint16_t bits[N];
#pragma unroll
  for (int i = 0; i < N; ++i)
    bits[i] = static_cast<const std::uint16_t*>(data)[offset + i * stride];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = number(bits[i], dtype);
}

// N of them side by side, aligned for wide accesses.
template <int N>
__device__ __forceinline__ void load_wide(const void* data, DType dtype, std::int64_t offset,
                                          float (&values)[N]) {
  if (dtype == DType::kFloat32) {
    Pack<float, N> pack;
    pack.load(static_cast<const float*>(data) + offset);
    pack.unpack(values);
  } else if (dtype == DType::kBFloat16) {
    Pack<__nv_bfloat16, N> pack;
    pack.load(static_cast<const __nv_bfloat16*>(data) + offset);
    pack.unpack(values);
  } else {
    Pack<__half, N> pack;
    pack.load(static_cast<const __half*>(data) + offset);
    pack.unpack(values);
  }
}

template <int N>
__device__ __forceinline__ void store_wide(void* data, DType dtype, std::int64_t offset,
                                           const float (&values)[N]) {
  if (dtype == DType::kFloat32) {
    Pack<float, N> pack;
    pack.pack(values);
    pack.store(static_cast<float*>(data) + offset);
  } else if (dtype == DType::kBFloat16) {
    Pack<__nv_bfloat16, N> pack;
    pack.pack(values);
    pack.store(static_cast<__nv_bfloat16*>(data) + offset);
  } else {
    Pack<__half, N> pack;
    pack.pack(values);
    pack.store(static_cast<__half*>(data) + offset);
  }
}

__device__ __forceinline__ void store_number(void* data, DType dtype, std::int64_t offset,
                                             float x) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[offset] = x;
  } else if (dtype == DType::kBFloat16) {
    static_cast<__nv_bfloat16*>(data)[offset] = from_float<__nv_bfloat16>(x);
  } else {
    static_cast<__half*>(data)[offset] = from_float<__half>(x);
  }
}

template <class T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<__half> = DType::kFloat16;

}  // namespace hyla::device
