// Addresses as PTX wants them for shared memory.
#pragma once

#include <cstdint>

namespace hyla::arch {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Rows of 128 bytes whose 16-byte chunks are XORed with the row number: what TMA writes and wgmma
// reads under the 128-byte swizzle, in a tile aligned to 1024 bytes.
__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t row, std::uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}

}  // namespace hyla::arch
