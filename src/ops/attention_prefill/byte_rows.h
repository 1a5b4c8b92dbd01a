// Where a token of a cache with one byte a value lies, and the scales of its values.
#pragma once

#include "ops/attention_prefill/kv_rows.h"
#include "ops/attention_prefill/region.h"

namespace hyla::attention {

struct ByteRows : KvRows {
  const float* scales = nullptr;  // or null: values count as they are
  std::int64_t scale_outer = 0, scale_token = 0, scale_head = 0,
               scale_inner = 0;            // strides
  int scale_groups = 0, scale_chunks = 1;  // of a head; groups of eight values that share a scale
  bool integers = false;                   // int8, otherwise e4m3
  bool sixteens = false;  // 16 bytes of a row are one aligned access, of keys and of values
  bool folds = false;     // one scale a token and head, which multiplies scores or probabilities
  const Region* widened = nullptr;  // [N], or null: rows that another launch computes

  HYLA_HOST_DEVICE bool leaves(int row) const {
    return widened != nullptr && widened[row].chosen != 0;
  }
};

inline ByteRows byte_rows(const CacheView& cache, const TensorView& values,
                          const TensorView& scales) {
  ByteRows rows;
  static_cast<KvRows&>(rows) = kv_rows(cache, values);
  rows.integers = values.dtype == DType::kInt8;
  if (!scales.present()) return rows;
  const bool ragged = cache.kind == KvCache::Kind::kRagged;
  const int t = ragged ? 0 : 1, last = scales.rank - 1;
  rows.scales = static_cast<const float*>(scales.data);
  rows.scale_outer = ragged ? 0 : scales.strides[0];
  rows.scale_token = scales.strides[t];
  rows.scale_head = scales.strides[t + 1];
  rows.scale_inner = scales.strides[last];
  rows.scale_groups = static_cast<int>(scales.shape[last]);
  rows.scale_chunks = static_cast<int>(values.shape[last] / scales.shape[last] / 8);
  return rows;
}

}  // namespace hyla::attention
