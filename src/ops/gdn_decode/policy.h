// Which variant of a one-token kernel runs. Measured on an H200 with HV = 32, 128 x 128, L2 cold,
// CUDA graph; the tables are in README.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyla::gdn {

struct DecodeVariant {
  int loads;  // 16-byte accesses in flight a thread
  int width;  // kVK: warps of a CTA; kKV: lanes along a line

  constexpr bool operator==(const DecodeVariant&) const = default;
};

// Few bytes: latency counts, so more and shorter warps.
struct DecodeVariants {
  DecodeVariant small, large;
  std::int64_t small_bytes;  // of all states

  constexpr const DecodeVariant& of(std::int64_t state_bytes) const {
    return state_bytes <= small_bytes ? small : large;
  }
};

// One warp a CTA retires alone.
constexpr DecodeVariants vk_variants(std::size_t element_bytes, std::size_t) {
  return {{4, element_bytes == 4 ? 2 : 4}, {8, 1}, std::int64_t{8} << 20};
}

// q, k, v in float32: the long lines would spill registers.
constexpr DecodeVariants kv_variants(std::size_t element_bytes, std::size_t io_bytes) {
  constexpr DecodeVariant kShort{8, 8};
  if (element_bytes == 4) {
    return {kShort, io_bytes == 4 ? kShort : DecodeVariant{8, 16}, std::int64_t{8} << 20};
  }
  return {{8, 4}, {8, 8}, std::int64_t{8} << 20};
}

}  // namespace hyla::gdn
