// Which variant of a one-token kernel runs. Measured on an H200 with HV = 32, 128 x 128, L2 cold,
// CUDA graph; the tables are in README.md.
#pragma once

#include <cstdint>

namespace hyla::gdn {

struct DecodeVariant {
  int loads;  // 16-byte accesses in flight a thread
  int warps;  // kVK only: warps of a CTA
};

// Few bytes: latency counts, so more and shorter warps. Many: one warp a CTA, so that each retires
// alone.
inline constexpr DecodeVariant kSmallVk{4, 2}, kLargeVk{8, 1};

// float32: 4 loads win up to B = 4 (8 MiB), 8 from B = 8 on. 16-bit states: the change is between B
// = 32 (32 MiB) and 64.
constexpr bool is_small_vk(std::int64_t state_bytes, int element_bytes) {
  return state_bytes <= (element_bytes == 4 ? 8LL << 20 : 32LL << 20);
}

// kKV: loads decide how many warps share K. float32: 16 loads win from B = 8 on (16 MiB); 16-bit
// states: 8 always.
inline constexpr int kSmallKv = 8, kLargeKv = 16;
constexpr bool is_small_kv(std::int64_t state_bytes, int element_bytes) {
  return element_bytes == 2 || state_bytes <= 8LL << 20;
}

}  // namespace hyla::gdn
