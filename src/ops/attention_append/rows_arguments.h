// Host side of append_rows: what it takes, and how a problem becomes its arguments.
#pragma once

#include <bit>

#include "device/alignment.h"
#include "ops/attention_append/kernel_rows.cuh"

namespace hyla::attention::appending {

inline constexpr std::int64_t kMostChunks = INT32_MAX - 64 * 32 * kMostLines;

// Rows of a tensor can be read or written `bytes` at a time.
inline bool aligned_rows(const TensorView& x, std::int64_t bytes) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  bool good = device::aligned(x.data, bytes) && x.shape[x.rank - 1] * size % bytes == 0;
  for (int d = 0; d < x.rank - 1; ++d) good = good && x.strides[d] * size % bytes == 0;
  return good;
}

inline bool aligned_table(const TensorView& x) {
  return device::aligned(x.data, 16) && x.strides[1] == 1 &&
         (x.shape[0] <= 1 || x.strides[0] % 4 == 0);
}

inline bool as_is(const AppendProblem& p) {
  return !p.cos.present() && p.k.dtype == p.cache.k.dtype;
}

// Null when the kernel takes one of keys and values.
inline const char* half_refuses(const AppendProblem& p, const TensorView& from,
                                const TensorView& to, const TensorView& scales) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t chunks = from.shape[2] * size / 16;
  if (!aligned_rows(from, 16)) return "keys or values are not aligned to 16 bytes";
  if (!aligned_rows(to, 16 * static_cast<std::int64_t>(size_of(to.dtype)) / size)) {
    return "the cache's rows are not aligned to chunks";
  }
  if (chunks * p.heads < kMostLines) return "a token has fewer than 64 bytes";
  if (chunks * p.heads * from.shape[0] > kMostChunks) return "too many tokens";
  if (as_is(p)) return nullptr;
  if (from.dtype != DType::kBFloat16 && from.dtype != DType::kFloat16) {
    return "converts from bfloat16 and float16";
  }
  if (to.dtype != from.dtype && size_of(to.dtype) != 1) return "the cache has another dtype";
  if (!std::has_single_bit(static_cast<std::uint64_t>(chunks)) || chunks > 32) {
    return "converts head dims 8, 16, 32, 64, 128 and 256";
  }
  if (scales.present()) {
    const std::int64_t run = from.shape[2] / scales.shape[scales.rank - 1];
    if (run % 8 != 0) return "a scale has fewer than 8 values";
  }
  return nullptr;
}

inline const char* rows_refuses(const AppendProblem& p) {
  if (const char* reason = half_refuses(p, p.k, p.cache.k, p.cache.k_scales)) return reason;
  if (p.value_dim > 0) {
    if (const char* reason = half_refuses(p, p.v, p.cache.v, p.cache.v_scales)) return reason;
  }
  const CacheView& cache = p.cache;
  const std::int64_t capacity = cache.kind == KvCache::Kind::kPaged
                                    ? cache.page_table.columns * cache.page_size()
                                    : cache.k.shape[cache.kind == KvCache::Kind::kRagged ? 0 : 1];
  if (capacity > INT32_MAX) return "positions beyond 2^31";
  if (p.cos.present()) {
    if (p.cos.shape[1] % 8 != 0) return "rotates multiples of 16 values";
    if (!aligned_table(p.cos) || !aligned_table(p.sin)) return "cos and sin are not aligned";
  }
  return nullptr;
}

inline Half half_of(const AppendProblem& p, const TensorView& from, const TensorView& to,
                    const TensorView& scales) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  Half half;
  half.from = static_cast<const char*>(from.data);
  half.token_bytes = from.strides[0] * size;
  half.head_bytes = from.strides[1] * size;
  half.to = CacheTensor(to, p.cache.kind);
  half.scales = CacheTensor(scales, p.cache.kind);
  half.size = static_cast<int>(size_of(to.dtype));
  half.chunks = static_cast<int>(from.shape[2] * size / 16);
  half.per_token = half.chunks * static_cast<int>(p.heads);
  half.total = half.per_token * static_cast<int>(from.shape[0]);
  half.by_token = device::Divider(static_cast<std::uint32_t>(half.per_token));
  half.by_head = device::Divider(static_cast<std::uint32_t>(half.chunks));
  if (scales.present()) {
    const std::int64_t lanes = half.chunks / scales.shape[scales.rank - 1];
    half.scale_shift = std::countr_zero(static_cast<std::uint64_t>(lanes));
  }
  return half;
}

inline RowsArguments rows_arguments(const AppendProblem& p) {
  RowsArguments a;
  a.sequences = p.sequences;
  a.places = CachePlaces(p.cache);
  a.tokens = static_cast<int>(p.k.shape[0]);
  a.halves[0] = half_of(p, p.k, p.cache.k, p.cache.k_scales);
  if (p.value_dim > 0) a.halves[1] = half_of(p, p.v, p.cache.v, p.cache.v_scales);
  a.paired = p.value_dim == p.head_dim;
  if (p.cos.present()) {
    a.cos = static_cast<const float*>(p.cos.data);
    a.sin = static_cast<const float*>(p.sin.data);
    a.cos_stride = p.cos.strides[0];
    a.sin_stride = p.sin.strides[0];
    a.positions = static_cast<int>(std::min<std::int64_t>(p.cos.shape[0], INT32_MAX));
    a.rotated_chunks = static_cast<int>(p.cos.shape[1] / 4);
    a.interleaved = p.interleaved;
  }
  return a;
}

}  // namespace hyla::attention::appending
