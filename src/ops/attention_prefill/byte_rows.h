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
  HYLA_HOST_DEVICE bool scaled() const { return scales != nullptr; }

  // Where a token of a row is, found once for its key and its value.
  struct Spot {
    int outer = -1, token = 0;  // outer < 0: nowhere

    HYLA_HOST_DEVICE bool somewhere() const { return outer >= 0; }
  };
  HYLA_HOST_DEVICE Spot find(Entry found, int batch, int at) const {
    const Place here =
        place(found, static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(at));
    // A page number of 64 bits may be below 0 and its lower half not.
    return {here.outer < 0 ? -1 : static_cast<int>(here.outer), static_cast<int>(here.token)};
  }
  // Of a token that is somewhere: its head's bytes, and its one scale.
  HYLA_HOST_DEVICE std::uint64_t address(const Spot& at, int /*batch*/, int head) const {
    return reinterpret_cast<std::uint64_t>(values) + head * head_bytes + at.outer * outer_bytes +
           at.token * token_bytes;
  }
  HYLA_HOST_DEVICE float scale(const Spot& at, int /*batch*/, int head) const {
    return *first_scale(at, head);
  }
  // Scales of each eight values: what one lane finds another may ask with. 0: nowhere, scales of 0.
  HYLA_HOST_DEVICE std::uint64_t find_scales(const Spot& at, int head) const {
    return at.outer < 0 ? 0 : reinterpret_cast<std::uint64_t>(first_scale(at, head));
  }
  HYLA_HOST_DEVICE float scale_of_eight(std::uint64_t found, int /*batch*/, int /*head*/,
                                        int eight) const {
    const auto* row = reinterpret_cast<const float*>(found);
    const int group = eight / scale_chunks;
    const int part = group < scale_groups - 1 ? group : scale_groups - 1;
    return row == nullptr ? 0.0f : row[part * scale_inner];
  }

 private:
  HYLA_HOST_DEVICE const float* first_scale(const Spot& at, int head) const {
    return scales + at.outer * scale_outer + at.token * scale_token + head * scale_head;
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
  rows.folds = rows.scale_groups == 1;
  rows.scale_chunks = static_cast<int>(values.shape[last] / scales.shape[last] / 8);
  return rows;
}

}  // namespace hyla::attention
