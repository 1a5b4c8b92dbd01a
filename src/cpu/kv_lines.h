// Keys and values of a cache as floats. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_KV_LINES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_KV_LINES_H_
#undef HYLA_CPU_KV_LINES_H_
#else
#define HYLA_CPU_KV_LINES_H_
#endif

#include "cpu/lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Where one key of one head lies in a tensor of the cache.
struct CacheRow {
  std::int64_t outer = 0, token = 0;

  std::int64_t offset(const TensorView& view, std::int64_t head) const {
    if (view.rank == 3) return token * view.strides[0] + head * view.strides[1];
    return outer * view.strides[0] + token * view.strides[1] + head * view.strides[2];
  }
};

HYLA_INLINE CacheRow cache_row(const attention::CacheView& cache, std::int64_t row,
                               std::int64_t key) {
  switch (cache.kind) {
    case attention::KvCache::Kind::kDense:
      return {row, key};
    case attention::KvCache::Kind::kRagged:
      return {0, cache.cu_kv.at(row) + key};
    default: {
      const std::int64_t page = cache.page_size();
      return {cache.page_table.at(row, key / page), key % page};
    }
  }
}

// Addresses of head 0 of `count` keys from `first` on in a tensor of the cache; those from `end` on
// are those of end - 1.
inline void row_addresses(const attention::CacheView& cache, const TensorView& view,
                          std::int64_t row, std::int64_t first, std::int64_t count,
                          std::int64_t end, const char** to) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t step = view.strides[view.rank == 3 ? 0 : 1] * size;
  std::int64_t i = 0;
  while (i < count && first + i < end) {
    const CacheRow at = cache_row(cache, row, first + i);
    const char* address = static_cast<const char*>(view.data) + at.offset(view, 0) * size;
    std::int64_t run = std::min(count - i, end - first - i);
    if (cache.kind == attention::KvCache::Kind::kPaged) {
      run = std::min(run, cache.page_size() - at.token);
    }
    for (const std::int64_t last = i + run; i < last; ++i, address += step) to[i] = address;
  }
  for (; i > 0 && i < count; ++i) to[i] = to[i - 1];
}

// Without a table, so that the compiler makes vectors of it, and without denormals on the way.
HYLA_INLINE float e4m3_value(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7fu;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  float value;
  std::memcpy(&value, &normal, sizeof value);
  value = magnitude < 8 ? 2.0f * value - 0x1p-6f : value;
  std::uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  word = (magnitude == 0x7f ? 0x7fc00000u : word) | sign;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

HYLA_INLINE void prefetch_cache_row(const TensorView& values, const CacheRow& at, std::int64_t head,
                                    std::int64_t dim) {
  const auto size = static_cast<std::int64_t>(size_of(values.dtype));
  const char* line = static_cast<const char*>(values.data) + at.offset(values, head) * size;
  for (std::int64_t i = 0; i < dim * size; i += 64) __builtin_prefetch(line + i, 0, 2);
}

// Numbers as they are stored, without their scales.
inline void load_stored(const void* data, DType dtype, std::int64_t offset, std::int64_t dim,
                        float* to) {
  if (dtype == DType::kFloat8E4M3) {
    const std::uint8_t* from = static_cast<const std::uint8_t*>(data) + offset;
    for (std::int64_t d = 0; d < dim; ++d) to[d] = e4m3_value(from[d]);
  } else if (dtype == DType::kInt8) {
    const std::int8_t* from = static_cast<const std::int8_t*>(data) + offset;
    for (std::int64_t d = 0; d < dim; ++d) to[d] = static_cast<float>(from[d]);
  } else {
    load_line(data, dtype, offset, 1, dim, to);
  }
}

inline void apply_scales(const TensorView& scales, const CacheRow& at, std::int64_t head,
                         std::int64_t dim, float* to) {
  const std::int64_t runs = scales.shape[scales.rank - 1], run = dim / runs;
  const float* scale = static_cast<const float*>(scales.data) + at.offset(scales, head);
  for (std::int64_t i = 0; i < runs; ++i) {
    const float factor = scale[i * scales.strides[scales.rank - 1]];
    for (std::int64_t d = i * run; d < (i + 1) * run; ++d) to[d] *= factor;
  }
}

inline void load_cache_row(const TensorView& values, const TensorView& scales, const CacheRow& at,
                           std::int64_t head, std::int64_t dim, float* to) {
  load_stored(values.data, values.dtype, at.offset(values, head), dim, to);
  if (scales.present()) apply_scales(scales, at, head, dim, to);
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_KV_LINES_H_
