// Whether memory can be read in accesses of several elements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/views.h"

namespace hyla::device {

// `bytes` is a power of two.
inline bool aligned(const void* data, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(data) & static_cast<std::uintptr_t>(bytes - 1)) == 0;
}

// Every access of `chunk` elements at a multiple of `chunk`, a power of two, is aligned to its size,
// or to 16 bytes.
inline bool aligned(const core::TokenView& view, std::int64_t chunk) {
  const std::uint64_t size = size_of(view.dtype);
  const std::uint64_t bytes = std::min<std::uint64_t>(16, static_cast<std::uint64_t>(chunk) * size);
  const auto strides =
      static_cast<std::uint64_t>(view.row_stride | view.token_stride | view.head_stride);
  return aligned(view.data, static_cast<std::int64_t>(bytes)) &&
         (strides * size & (bytes - 1)) == 0;
}

}  // namespace hyla::device
