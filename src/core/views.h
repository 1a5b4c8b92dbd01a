// The checked forms in which tensors reach an implementation: plain data, passable to a kernel by
// value, with the strides named after what they step over instead of numbered.
#pragma once

#include <hyla/host_device.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::core {

// Integers of any index dtype, rank 1 or 2.
struct IndexView {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t stride = 0, column_stride = 0;
  std::int64_t columns = 1;

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
  HYLA_HOST_DEVICE std::int64_t at(std::int64_t i, std::int64_t j = 0) const {
    const std::int64_t offset = i * stride + j * column_stride;
    switch (dtype) {
      case DType::kInt32:
        return static_cast<const std::int32_t*>(data)[offset];
      case DType::kInt64:
        return static_cast<const std::int64_t*>(data)[offset];
      case DType::kUInt32:
        return static_cast<const std::uint32_t*>(data)[offset];
      default:  // bool and uint8 masks
        return static_cast<const std::uint8_t*>(data)[offset];
    }
  }
};

// A vector of numbers, for example A_log [HV].
struct VectorView {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t stride = 0;

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
};

// Values of tokens: [B, T, heads, dim] (row_stride used) or ragged [total, heads, dim] (row_stride
// 0). Gates have no dim.
struct TokenView {
  void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t row_stride = 0, token_stride = 0, head_stride = 0, dim_stride = 0;

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
  // `token` counts from the row's start when rows have a stride, from the start of the batch when
  // ragged.
  HYLA_HOST_DEVICE std::int64_t offset(std::int64_t row, std::int64_t token, std::int64_t head,
                                       std::int64_t dim = 0) const {
    return row * row_stride + token * token_stride + head * head_stride + dim * dim_stride;
  }
};

// Which tokens belong to row b: T each, or by offsets on the device.
struct Sequences {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // uniform: T of each row; ragged: total
  IndexView cu_seqlens, starts, lengths;

  HYLA_HOST_DEVICE bool ragged() const { return cu_seqlens.present() || starts.present(); }
  HYLA_HOST_DEVICE std::int64_t begin(std::int64_t row) const {
    if (cu_seqlens.present()) return cu_seqlens.at(row);
    return starts.present() ? starts.at(row) : 0;
  }
  HYLA_HOST_DEVICE std::int64_t length(std::int64_t row) const {
    if (cu_seqlens.present()) return cu_seqlens.at(row + 1) - cu_seqlens.at(row);
    return lengths.present() ? lengths.at(row) : tokens;
  }
};

inline constexpr std::int64_t kNullSlot = -1;

// The limit of a pool that is absent: no slot is out of its range.
inline constexpr std::int64_t kNoLimit = INT64_MAX;

// Which pool slot row b reads and writes; kNullSlot for "none".
struct Slots {
  IndexView read, read_columns, write;
  std::int64_t first = 0;                        // an index below it is null
  std::int64_t read_limit = 0, write_limit = 0;  // pool sizes: an index at or past it is null

  HYLA_HOST_DEVICE std::int64_t checked(std::int64_t slot, std::int64_t limit) const {
    return slot < first || slot < 0 || slot >= limit ? kNullSlot : slot;
  }
  HYLA_HOST_DEVICE std::int64_t raw_read(std::int64_t row) const {
    if (!read.present()) return row;
    std::int64_t column = 0;
    if (read_columns.present()) {
      column = read_columns.at(row);
      column = column < 0 ? 0 : column >= read.columns ? read.columns - 1 : column;
    }
    return read.at(row, column);
  }
  HYLA_HOST_DEVICE std::int64_t raw_write(std::int64_t row) const {
    return write.present() ? write.at(row) : raw_read(row);
  }
  HYLA_HOST_DEVICE std::int64_t read_slot(std::int64_t row) const {
    // Nothing is read and nobody said "null": the row starts from zero.
    if (!read.present() && read_limit == kNoLimit) return row;
    return checked(raw_read(row), read_limit);
  }
  HYLA_HOST_DEVICE std::int64_t write_slot(std::int64_t row) const {
    return checked(raw_write(row), write_limit);
  }
};

}  // namespace hyla::core
