// The layout of a recorded call that its writer and its reader share.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>

#include "testing/recording.h"

namespace hyla::testing::format {

static_assert(std::endian::native == std::endian::little);

inline constexpr char kMagic[] = {'H', 'Y', 'L', 'A', 'C', 'A', 'L', 'L'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kVersionAt = 8, kHeaderSizeAt = 12, kDigestAt = 16;
inline constexpr std::size_t kPreludeBytes = 24;
inline constexpr std::size_t kAlignment = 64;
inline constexpr std::size_t kMaxHeaderBytes = 1 << 20;

inline std::size_t align(std::size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
T read_scalar(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void write_scalar(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

inline std::size_t buffer_index(const Call& call, const TensorView& view) {
  return static_cast<std::size_t>(&call.buffer_of(view) - call.buffers.data());
}

// Indices of the buffers that the call writes to.
inline std::set<std::size_t> written_buffers(const Call& call) {
  std::set<std::size_t> result;
  for (const NamedTensor& t : tensors(call)) {
    if (t.access == Access::kWrite) result.insert(buffer_index(call, t.view));
  }
  return result;
}

}  // namespace hyla::testing::format
