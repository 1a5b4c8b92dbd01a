// Integers of any index dtype, rank 1 or 2, readable on host and device.
#ifndef HYLA_INDEX_SPAN_H_
#define HYLA_INDEX_SPAN_H_

#include <hyla/host_device.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla {

struct IndexSpan {
  const void* data = nullptr;
  DType dtype = DType::kNone;  // int32, int64, uint32
  std::int64_t rows = 0, columns = 1;
  std::int64_t stride = 0, column_stride = 0;  // in elements

  IndexSpan() = default;
  explicit IndexSpan(const TensorView& view)
      : data(view.data),
        dtype(view.dtype),
        rows(view.rank > 0 ? view.shape[0] : 0),
        columns(view.rank > 1 ? view.shape[1] : 1),
        stride(view.rank > 0 ? view.strides[0] : 0),
        column_stride(view.rank > 1 ? view.strides[1] : 0) {}

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
  HYLA_HOST_DEVICE std::int64_t at(std::int64_t row, std::int64_t column = 0) const {
    const std::int64_t offset = row * stride + column * column_stride;
    if (dtype == DType::kInt64) return static_cast<const std::int64_t*>(data)[offset];
    if (dtype == DType::kUInt32) return static_cast<const std::uint32_t*>(data)[offset];
    return static_cast<const std::int32_t*>(data)[offset];
  }
};

}  // namespace hyla

#endif  // HYLA_INDEX_SPAN_H_
