// Where a token of a built-in cache lies: dense, ragged and paged caches of any page size, layout
// and strides as one value, so that kernels are compiled once for all of them. A user's operand
// comes through operand_rows.h with the same members.
#pragma once

#include <hyla/index_span.h>
#include <hyla/kv_tile.h>

#include <cstdint>

#include "device/divider.h"
#include "problem/attention.h"

namespace hyla::attention {

struct KvRows {
  static constexpr bool kHasGroups = true;  // as far as types can tell

  const char* values = nullptr;
  std::int64_t outer_bytes = 0, token_bytes = 0, head_bytes = 0;
  std::int64_t outers = 0;      // rows of a batch, or pages; ragged: 1
  std::uint32_t tokens = 0;     // of an outer
  device::Divider by_tokens;    // positions fit 31 bits
  std::int64_t outer_rows = 0;  // virtual rows from one outer to the next; 0: not a whole number
  IndexSpan pages;              // [N, columns]
  IndexSpan offsets;            // [N + 1]: ragged
  IndexSpan lengths;            // [N]; absent: all of a row

  // Keys of a row; never more than it has room for.
  HYLA_HOST_DEVICE std::int64_t length(std::int64_t batch, std::int64_t /*queries*/) const {
    std::int64_t room = tokens;
    if (pages.present()) room *= pages.columns;
    if (offsets.present()) {
      const std::int64_t rows = offsets.at(batch + 1) - offsets.at(batch);
      room = rows < room ? rows : room;
    }
    if (!lengths.present()) return room;
    const std::int64_t length = lengths.at(batch);
    return length < room ? length : room;
  }

  // A page number as it lies in the table: asked for ahead of its use, nothing waits for it.
  struct Entry {
    std::uint32_t low = 0, high = 0;
  };
  HYLA_HOST_DEVICE Entry entry(std::uint32_t batch, std::uint32_t token) const {
    Entry found;
    if (!pages.present()) return found;
    const auto column = static_cast<std::uint32_t>(by_tokens(static_cast<int>(token)));
    if (column >= pages.columns) return found;
    const std::int64_t offset = batch * pages.stride + column * pages.column_stride;
    const auto* words = static_cast<const std::uint32_t*>(pages.data);
    if (pages.dtype == DType::kInt64) {
      found.low = words[2 * offset];
      found.high = words[2 * offset + 1];
    } else {
      found.low = words[offset];
    }
    return found;
  }

  struct Place {
    std::int64_t outer, token;  // outer < 0: nowhere
  };
  HYLA_HOST_DEVICE Place place(Entry found, std::uint32_t batch, std::uint32_t token) const {
    if (pages.present()) {
      const auto column = static_cast<std::uint32_t>(by_tokens(static_cast<int>(token)));
      if (column >= pages.columns) return {-1, 0};
      const std::int64_t page = page_of(found);
      return page < outers ? Place{page, token - column * tokens} : Place{-1, 0};
    }
    if (offsets.present()) {
      const std::int64_t at = offsets.at(batch) + token;
      return at >= 0 && at < tokens ? Place{0, at} : Place{-1, 0};
    }
    return token < tokens ? Place{batch, token} : Place{-1, 0};
  }

  // Virtual row of the token, kNoRow when there is none.
  HYLA_HOST_DEVICE std::uint32_t row(std::uint32_t batch, std::uint32_t token) const {
    const Place at = place(entry(batch, token), batch, token);
    if (at.outer < 0) return kNoRow;
    return static_cast<std::uint32_t>(at.outer * outer_rows + at.token);
  }
  // Null when there is none.
  HYLA_HOST_DEVICE const void* pointer(Entry found, std::uint32_t batch, std::uint32_t token,
                                       std::uint32_t head) const {
    const Place at = place(found, batch, token);
    if (at.outer < 0) return nullptr;
    return values + at.outer * outer_bytes + at.token * token_bytes + head * head_bytes;
  }

 private:
  HYLA_HOST_DEVICE std::int64_t page_of(Entry found) const {
    if (pages.dtype == DType::kInt64) {
      return static_cast<std::int64_t>(std::uint64_t{found.high} << 32 | found.low);
    }
    if (pages.dtype == DType::kUInt32) return found.low;
    return static_cast<std::int32_t>(found.low);
  }
};

// values: cache.k or cache.v
inline KvRows kv_rows(const CacheView& cache, const TensorView& values) {
  const bool ragged = cache.kind == KvCache::Kind::kRagged;
  const int t = ragged ? 0 : 1;  // dimension of the tokens
  const auto size = static_cast<std::int64_t>(size_of(values.dtype));
  KvRows rows;
  rows.values = static_cast<const char*>(values.data);
  rows.outers = ragged ? 1 : values.shape[0];
  rows.tokens = static_cast<std::uint32_t>(values.shape[t]);
  rows.by_tokens = device::Divider(rows.tokens > 0 ? rows.tokens : 1);
  rows.token_bytes = values.strides[t] * size;
  rows.head_bytes = values.strides[t + 1] * size;
  rows.outer_bytes = ragged ? 0 : values.strides[0] * size;
  // The stride of a single token says nothing where it does not fit the pages.
  if (rows.tokens == 1 && (rows.token_bytes <= 0 || rows.outer_bytes % rows.token_bytes != 0)) {
    rows.token_bytes = rows.outer_bytes;
  }
  if (rows.outers <= 1) {
    rows.outer_rows = rows.tokens;
  } else if (rows.token_bytes > 0 && rows.outer_bytes % rows.token_bytes == 0) {
    rows.outer_rows = rows.outer_bytes / rows.token_bytes;
  }
  rows.lengths = cache.kv_lengths;
  if (cache.kind == KvCache::Kind::kPaged) rows.pages = cache.page_table;
  if (ragged) rows.offsets = cache.cu_kv;
  return rows;
}

}  // namespace hyla::attention
