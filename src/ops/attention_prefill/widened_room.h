// The part of the prefill kernel's workspace that holds widened keys and values, behind the
// schedule and the pieces: regions [N], keys, values, their scales.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/padded_dim.h"
#include "ops/attention_prefill/prefill_shape.h"
#include "ops/attention_prefill/region.h"
#include "ops/attention_prefill/schedule.cuh"

namespace hyla::attention {

// A row of at least so many packed queries is worth it: widening a key costs 3 bytes of memory a
// value, once; every 128 or 192 queries that meet it widened in the loader cost the tensor cores
// as much as they compute.
inline constexpr std::int64_t kWidenedQueries = 512;

// What is asked for at most for the sake of many long rows, and for one.
inline constexpr std::int64_t kWidenedBytes = std::int64_t{256} << 20;
inline constexpr std::int64_t kMostWidenedBytes = std::int64_t{1} << 30;

constexpr int widened_tile_keys(std::int64_t dim) {
  switch (padded_dim(dim)) {
    case 64:
      return PrefillShape<64, Loading::kWidened>::kKeys;
    case 128:
      return PrefillShape<128, Loading::kWidened>::kKeys;
    default:
      return PrefillShape<256, Loading::kWidened>::kKeys;
  }
}

struct WidenedRoom {
  std::int64_t kv_heads, head_dim, value_dim;

  static std::int64_t region_bytes(std::int64_t rows) {
    return (rows * static_cast<std::int64_t>(sizeof(Region)) + 255) / 256 * 256;
  }
  int tile_keys() const { return widened_tile_keys(std::max(head_dim, value_dim)); }
  // Of a key and its value, with their scales.
  std::int64_t token_bytes() const { return kv_heads * (2 * head_dim + 2 * value_dim + 8); }
  std::int64_t bytes(std::int64_t rows, std::int64_t tiles) const {
    return region_bytes(rows) + tiles * tile_keys() * token_bytes();
  }
  // What `bytes` of memory have room for.
  std::int64_t tiles(std::int64_t rows, std::int64_t bytes) const {
    const std::int64_t left = std::max<std::int64_t>(bytes - region_bytes(rows), 0);
    return std::min<std::int64_t>(left / (tile_keys() * token_bytes()), kMostWidenedTiles);
  }
  std::int64_t tiles_of(std::int64_t keys) const { return (keys + tile_keys() - 1) / tile_keys(); }
};

}  // namespace hyla::attention
