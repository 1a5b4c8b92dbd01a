// Keys and values of one byte that a kernel of their own has widened to 16-bit numbers in the
// workspace, row after row of the batch: where they lie there, and which rows of the batch do.
//
// Every row that is widened has a region: whole tiles of keys from the first one that a query sees,
// zeros behind its end. Which rows fit is decided on the device, in their order.
#pragma once

#include <hyla/attention_mask.h>

#include "ops/attention_prefill/kv_rows.h"
#include "ops/attention_prefill/region.h"

namespace hyla::attention {

struct WidenedRows {
  static constexpr bool kHasGroups = true;
  struct Entry {};

  KvRows cache;
  std::int64_t most_keys = 0;  // of a row
  Region* regions = nullptr;   // [N]
  const float* scales = nullptr;
  bool folds = false;      // one scale a token and head, [KV heads, room]
  int room = 0;            // rows of the workspace, whole tiles
  std::int64_t least = 0;  // packed queries of a row that is worth it
  int enough = 0;          // tiles of queries that fill the machine
  Mask mask;

  HYLA_HOST_DEVICE std::int64_t length(std::int64_t batch, std::int64_t queries) const {
    const std::int64_t keys = cache.length(batch, queries);
    return keys < most_keys ? keys : most_keys;
  }
  HYLA_HOST_DEVICE std::uint32_t row(std::uint32_t batch, std::uint32_t token) const {
    const Region& region = regions[batch];
    return static_cast<std::uint32_t>(region.begin - region.first) + token;
  }
  // Tiles of `tile` keys, from the first that a query sees.
  HYLA_HOST_DEVICE Region wanted(int queries, int keys, int tile) const {
    const std::int64_t seen = mask.visible(std::int64_t{keys} - queries, keys).begin;
    const int first = static_cast<int>(seen < keys ? seen : keys) / tile * tile;
    return {0, first, keys, 1};
  }
};

}  // namespace hyla::attention
