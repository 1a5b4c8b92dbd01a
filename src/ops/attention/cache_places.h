// Where the tokens of a cache lie, as a kernel asks: never outside the memory that was given,
// whatever lengths, offsets and page ids say.
#pragma once

#include <hyla/host_device.h>
#include <hyla/index_span.h>

#include "problem/attention.h"

namespace hyla::attention {

struct Place {
  std::int64_t outer = 0, token = 0;  // outer < 0: nowhere

  HYLA_HOST_DEVICE bool somewhere() const { return outer >= 0; }
};

struct CachePlaces {
  KvCache::Kind kind = KvCache::Kind::kNone;
  std::int64_t outers = 0, tokens = 0;  // rows or pages, and tokens of each; ragged: 1 and total
  IndexSpan cu_kv, page_table, kv_lengths;

  CachePlaces() = default;
  explicit CachePlaces(const CacheView& cache)
      : kind(cache.kind),
        outers(cache.kind == KvCache::Kind::kRagged ? 1 : cache.k.shape[0]),
        tokens(cache.k.shape[cache.kind == KvCache::Kind::kRagged ? 0 : 1]),
        cu_kv(cache.cu_kv),
        page_table(cache.page_table),
        kv_lengths(cache.kv_lengths) {}

  // First token of a ragged row, 0 elsewhere.
  HYLA_HOST_DEVICE std::int64_t begin(std::int64_t row) const {
    if (kind != KvCache::Kind::kRagged) return 0;
    return clamp(cu_kv.at(row), tokens);
  }
  HYLA_HOST_DEVICE std::int64_t capacity(std::int64_t row) const {
    if (kind == KvCache::Kind::kPaged) return page_table.columns * tokens;
    if (kind == KvCache::Kind::kDense) return tokens;
    return clamp(cu_kv.at(row + 1) - begin(row), tokens - begin(row));
  }
  // A length beyond the capacity counts as the capacity.
  HYLA_HOST_DEVICE std::int64_t length(std::int64_t row) const {
    const std::int64_t room = capacity(row);
    return kv_lengths.present() ? clamp(kv_lengths.at(row), room) : room;
  }
  // As it was given.
  HYLA_HOST_DEVICE std::int64_t raw_length(std::int64_t row) const {
    return kv_lengths.present() ? kv_lengths.at(row) : capacity(row);
  }
  // Of a token below capacity(row).
  HYLA_HOST_DEVICE Place place(std::int64_t row, std::int64_t token) const {
    if (kind == KvCache::Kind::kDense) return {row, token};
    if (kind == KvCache::Kind::kRagged) return {0, begin(row) + token};
    const std::int64_t column = token / tokens;
    const std::int64_t page = page_table.at(row, column);
    if (page < 0 || page >= outers) return {-1, 0};
    return {page, token - column * tokens};
  }

 private:
  static HYLA_HOST_DEVICE std::int64_t clamp(std::int64_t x, std::int64_t high) {
    return x < 0 ? 0 : x < high ? x : high;
  }
};

// One tensor of a cache: [outer, token, Hk, D], or its scales.
struct CacheTensor {
  void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t outer_stride = 0, token_stride = 0, head_stride = 0, inner_stride = 1;
  std::int64_t width = 0;  // of the last dimension

  CacheTensor() = default;
  CacheTensor(const TensorView& view, KvCache::Kind kind) {
    if (!view.present()) return;
    const int first = kind == KvCache::Kind::kRagged ? 0 : 1;
    data = view.data;
    dtype = view.dtype;
    outer_stride = first == 0 ? 0 : view.strides[0];
    token_stride = view.strides[first];
    head_stride = view.strides[first + 1];
    inner_stride = view.strides[first + 2];
    width = view.shape[first + 2];
  }

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
  HYLA_HOST_DEVICE std::int64_t offset(const Place& at, std::int64_t head) const {
    return at.outer * outer_stride + at.token * token_stride + head * head_stride;
  }
};

}  // namespace hyla::attention
