// Whether memory can be read in accesses of several elements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/views.h"

namespace hyla::device {

inline bool aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

// Every access of `chunk` elements at a multiple of `chunk` is aligned to its size, or to 16 bytes.
inline bool aligned(const core::TokenView& view, std::int64_t chunk) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t bytes = std::min<std::int64_t>(16, chunk * size);
  return aligned(view.data, bytes) && view.row_stride * size % bytes == 0 &&
         view.token_stride * size % bytes == 0 && view.head_stride * size % bytes == 0;
}

}  // namespace hyla::device
