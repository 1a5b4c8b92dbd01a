// DType, Device and TensorView: how memory is described to hyla. A view owns nothing, is trivially
// copyable, has rank <= 6 and int64 shape and strides in elements. A default-constructed view means
// "this argument is absent".
#ifndef HYLA_TENSOR_H_
#define HYLA_TENSOR_H_

#include <hyla/export.h>
#include <hyla/float.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace hyla {

enum class DType : std::uint8_t {
  kNone = 0,
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat8E4M3,
  kInt8,
  kInt32,
  kInt64,
  kUInt32,
  kUInt8,
  kBool,
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return 0;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kFloat8E4M3:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

HYLA_API const char* name_of(DType dtype);  // "float32", "bfloat16", ...

template <class T>
inline constexpr DType dtype_of = DType::kNone;
template <>
inline constexpr DType dtype_of<float> = DType::kFloat32;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType dtype_of<float16> = DType::kFloat16;
template <>
inline constexpr DType dtype_of<float8_e4m3> = DType::kFloat8E4M3;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::kInt8;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::kInt32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::kInt64;
template <>
inline constexpr DType dtype_of<std::uint32_t> = DType::kUInt32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::kUInt8;
template <>
inline constexpr DType dtype_of<bool> = DType::kBool;
template <class T>
inline constexpr DType dtype_of<const T> = dtype_of<T>;

struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {Kind::kCuda, index}; }
  friend constexpr bool operator==(Device, Device) = default;
};

HYLA_API std::string name_of(Device device);  // "cpu", "cuda:0"

struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::kNone;
  Device device{};
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};  // in elements

  TensorView() = default;

  // A dense row-major tensor. Inputs are never written through a view, so const data is taken too.
  template <class T>
  TensorView(T* pointer, std::initializer_list<std::int64_t> dims, Device where = Device::cpu())
      : TensorView(
            dense(const_cast<void*>(static_cast<const void*>(pointer)), dtype_of<T>, dims, where)) {
    static_assert(dtype_of<T> != DType::kNone, "hyla has no DType for this element type");
  }

  HYLA_API static TensorView dense(void* data, DType dtype,
                                   std::initializer_list<std::int64_t> shape,
                                   Device device = Device::cpu());

  bool present() const { return dtype != DType::kNone; }
  explicit operator bool() const { return present(); }
  // Product of the shape: 1 for rank 0, 2^63 - 1 when it is more than that.
  HYLA_API std::int64_t numel() const;

  // Views of the same memory. An index outside the shape throws InvalidArgument("view", ...).
  HYLA_API TensorView slice(int dim, std::int64_t begin, std::int64_t length) const;
  HYLA_API TensorView select(int dim, std::int64_t index) const;  // drops `dim`
  HYLA_API TensorView swap(int dim_a, int dim_b) const;
  HYLA_API TensorView split(int dim,
                            std::int64_t inner) const;  // [.., n, ..] -> [.., n/inner, inner, ..]
};

HYLA_API std::string describe(const TensorView& view);  // "float32 [2, 3] on cpu, strides [3, 1]"

}  // namespace hyla

#endif  // HYLA_TENSOR_H_
