#include <hyla/dlpack.h>

#include <cstddef>
#include <iterator>
#include <string>

#include "core/check.h"

namespace hyla {
namespace {

static_assert(sizeof(void*) != 8 || (sizeof(DLTensor) == 48 && offsetof(DLTensor, dtype) == 20 &&
                                     offsetof(DLTensor, byte_offset) == 40),
              "DLTensor has another layout than DLPack's on 64-bit machines");

// Numbers instead of the names in dlpack.h, because older headers lack some of them.
struct Code {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr Code kCodes[] = {
    {DType::kFloat32, 2, 32},    {DType::kBFloat16, 4, 16}, {DType::kFloat16, 2, 16},
    {DType::kFloat8E4M3, 10, 8}, {DType::kInt8, 0, 8},      {DType::kInt32, 0, 32},
    {DType::kInt64, 0, 64},      {DType::kUInt32, 1, 32},   {DType::kUInt8, 1, 8},
    {DType::kBool, 6, 8},
};

enum DeviceNumber : int { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

// "float64", "complex64", ...
std::string type_text(DLDataType type) {
  constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  if (type.code >= std::size(kNames)) {
    return "DLPack type code " + core::text(std::int64_t{type.code}) + " of " +
           core::text(std::int64_t{type.bits}) + " bits";
  }
  return kNames[type.code] + core::text(std::int64_t{type.bits});
}

DType dtype_from(DLDataType type, std::string_view argument) {
  if (type.lanes != 1) {
    core::fail(argument, "a dtype of 1 lane", core::text(std::int64_t{type.lanes}) + " lanes");
  }
  for (const Code& known : kCodes) {
    if (known.code == type.code && known.bits == type.bits) return known.dtype;
  }
  core::fail(argument, a_known_dtype(), type_text(type));
}

Device device_from(DLDevice device, std::string_view argument) {
  switch (static_cast<int>(device.device_type)) {
    case kCpu:
    case kCudaHost:
      return Device::cpu();
    case kCuda:
    case kCudaManaged:
      return Device::cuda(device.device_id);
    default:
      core::fail(
          argument, "a CPU or CUDA tensor",
          "one on DLPack device type " + core::text(static_cast<std::int64_t>(device.device_type)));
  }
}

bool all_zero(const DLTensor& t) {
  return t.data == nullptr && static_cast<int>(t.device.device_type) == 0 &&
         t.device.device_id == 0 && t.ndim == 0 && t.dtype.code == 0 && t.dtype.bits == 0 &&
         t.dtype.lanes == 0 && t.shape == nullptr && t.strides == nullptr && t.byte_offset == 0;
}

}  // namespace

std::string a_known_dtype() {
  std::string names;
  for (const Code& known : kCodes) {
    names.append(names.empty() ? "" : ", ").append(name_of(known.dtype));
  }
  return "a dtype that hyla knows (" + names + ")";
}

TensorView from_dlpack(const DLTensor& tensor, std::string_view argument) {
  if (all_zero(tensor)) return {};
  TensorView view;
  view.dtype = dtype_from(tensor.dtype, argument);
  view.device = device_from(tensor.device, argument);
  if (tensor.ndim < 0 || tensor.ndim > TensorView::kMaxRank) {
    core::fail(argument, "0 to 6 dimensions", core::text(std::int64_t{tensor.ndim}));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    core::fail(argument, "a shape", "a null pointer");
  }
  view.rank = tensor.ndim;
  std::int64_t dense_stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.shape[d] = tensor.shape[d];
    view.strides[d] = tensor.strides == nullptr ? dense_stride : tensor.strides[d];
    if (view.shape[d] < 0) core::fail(argument, "sizes >= 0", core::text(view.shape[d]));
    if (__builtin_mul_overflow(dense_stride, view.shape[d], &dense_stride)) {
      core::fail(argument, "fewer than 2^63 elements", "more");
    }
  }
  // A null pointer stays one: an offset from it would turn "no memory" into a wild address.
  if (tensor.data != nullptr) view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return view;
}

DLTensor to_dlpack(TensorView& view) {
  DLTensor tensor{};
  if (!view.present()) return tensor;
  tensor.data = view.data;
  const bool cpu = view.device.kind == Device::Kind::kCpu;
  tensor.device.device_type = static_cast<DLDeviceType>(cpu ? kCpu : kCuda);
  tensor.device.device_id = view.device.index;
  tensor.ndim = view.rank;
  for (const Code& known : kCodes) {
    if (known.dtype == view.dtype) tensor.dtype = {known.code, known.bits, 1};
  }
  tensor.shape = view.shape;
  tensor.strides = view.strides;
  return tensor;
}

}  // namespace hyla
