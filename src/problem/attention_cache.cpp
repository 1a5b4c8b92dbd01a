// The KV cache as an argument: its tensors, its lengths, its pages.
#include <limits>

#include "core/on_host.h"
#include "problem/attention_checks.h"

namespace hyla::attention {
namespace {

using core::fail;
using core::text;

inline constexpr core::DTypes kCacheTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                             DType::kFloat8E4M3, DType::kInt8};

bool is_quantised(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kInt8; }

struct Patterns {
  core::Pattern k, v;
};

Patterns patterns(const KvCache& cache) {
  const bool heads_first = cache.layout == KvLayout::kHND;
  switch (cache.kind) {
    case KvCache::Kind::kDense:
      return heads_first ? Patterns{"N Hk S D", "N Hk S DV"} : Patterns{"N S Hk D", "N S Hk DV"};
    case KvCache::Kind::kRagged:
      return {"total_kv Hk D", "total_kv Hk DV"};
    default:
      return heads_first ? Patterns{"P Hk S D", "P Hk S DV"} : Patterns{"P S Hk D", "P S Hk DV"};
  }
}

// All dimensions of the values but the last, which divides the head dim.
void check_scales(std::string_view argument, const TensorView& scales, std::string_view values_name,
                  const TensorView& values, core::Access access, const Context& context) {
  core::check_tensor(argument, scales, {DType::kFloat32}, context, core::Inner::kAny, access);
  bool same = scales.rank == values.rank;
  for (int d = 0; same && d < values.rank - 1; ++d) same = scales.shape[d] == values.shape[d];
  const std::int64_t head_dim = values.shape[values.rank - 1];
  if (!same || scales.shape[scales.rank - 1] < 1 || head_dim % scales.shape[scales.rank - 1] != 0) {
    fail(argument,
         "the shape of " + std::string(values_name) + " with a divisor of " + text(head_dim) +
             " as the last size",
         describe(scales));
  }
}

TensorView tokens_first(const TensorView& view, KvLayout layout) {
  return view.present() && layout == KvLayout::kHND ? view.swap(1, 2) : view;
}

void check_offsets(const CacheView& cache, std::int64_t rows) {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= rows; ++i) {
    const std::int64_t now = cache.cu_kv.at(i);
    if (now < before || now > cache.k.shape[0]) {
      fail("cache.cu_kv",
           "offsets from 0 up to the " + text(cache.k.shape[0]) + " tokens given that do not fall",
           text(now) + " at index " + text(i));
    }
    before = now;
  }
}

void check_lengths(const CacheView& cache, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t length = cache.length(row), capacity = cache.capacity(row);
    if (length < 0 || length > capacity) {
      fail("kv_lengths", "lengths from 0 to the " + text(capacity) + " tokens the row has room for",
           text(length) + " in row " + text(row));
    }
  }
}

}  // namespace

std::int64_t CacheView::capacity(std::int64_t row) const {
  switch (kind) {
    case KvCache::Kind::kDense:
      return k.shape[1];
    case KvCache::Kind::kRagged:
      return cu_kv.at(row + 1) - cu_kv.at(row);
    case KvCache::Kind::kPaged: {
      // A table may claim any number of columns.
      std::int64_t tokens = 0;
      return __builtin_mul_overflow(page_table.columns, page_size(), &tokens)
                 ? std::numeric_limits<std::int64_t>::max()
                 : tokens;
    }
    default:
      return 0;
  }
}

void check_dims(std::string_view k_argument, std::int64_t head_dim, std::string_view v_argument,
                std::int64_t value_dim) {
  if (head_dim == 576 && (value_dim == 512 || value_dim == 0)) return;
  core::check_head_dim(k_argument, head_dim, "D");
  if (value_dim != 0) core::check_head_dim(v_argument, value_dim, "DV");
}

void check_pages(const CacheView& cache, std::int64_t row, KeyRange keys) {
  if (cache.kind != KvCache::Kind::kPaged || keys.begin >= keys.end) return;
  const std::int64_t last = (keys.end - 1) / cache.page_size();
  for (std::int64_t column = keys.begin / cache.page_size(); column <= last; ++column) {
    const std::int64_t page = cache.page_table.at(row, column);
    if (page < 0 || page >= cache.k.shape[0]) {
      fail("cache.page_table",
           "pages from 0 to " + text(cache.k.shape[0] - 1) + " where keys are read or written",
           text(page) + " in row " + text(row) + ", column " + text(column));
    }
  }
}

CacheView check_cache(const KvCache& cache, const TensorView& kv_lengths, core::Shapes& shapes,
                      CacheAccess access, bool with_values, const Context& context) {
  const bool paged = cache.kind == KvCache::Kind::kPaged;
  const bool ragged = cache.kind == KvCache::Kind::kRagged;
  if (cache.kind != KvCache::Kind::kDense && !paged && !ragged) {
    fail("cache", "a dense, ragged or paged cache", "none");
  }
  if (cache.layout != KvLayout::kNHD && (ragged || cache.layout != KvLayout::kHND)) {
    fail("cache.layout", ragged ? "kNHD for a ragged cache" : "kNHD or kHND", "another");
  }
  const Patterns pattern = patterns(cache);
  core::check_tensor("cache.k", cache.k, kCacheTypes, context, core::Inner::kContiguous,
                     access.values);
  shapes.match("cache.k", cache.k, pattern.k);
  if (shapes["Hk"] < 1) fail("cache.k", "at least one head", "0");
  if (with_values) {
    core::check_tensor("cache.v", cache.v, {cache.k.dtype}, context, core::Inner::kContiguous,
                       access.values);
    shapes.match("cache.v", cache.v, pattern.v);
  }
  if (paged && (shapes["S"] < 1 || shapes["S"] > 1024)) {
    fail("cache.k", "pages of 1 to 1024 tokens", text(shapes["S"]));
  }
  if (cache.k_scales.present()) {
    if (!is_quantised(cache.k.dtype)) {
      fail("cache.k_scales", "none beside a cache that is not float8_e4m3 or int8",
           describe(cache.k_scales));
    }
    check_scales("cache.k_scales", cache.k_scales, "cache.k", cache.k, access.scales, context);
    if (with_values) {
      check_scales("cache.v_scales", cache.v_scales, "cache.v", cache.v, access.scales, context);
    }
  } else {
    core::check_absent("cache.v_scales", cache.v_scales, "without cache.k_scales");
  }
  CacheView view;
  view.kind = cache.kind;
  view.k = tokens_first(cache.k, cache.layout);
  view.k_scales = tokens_first(cache.k_scales, cache.layout);
  if (with_values) {
    view.v = tokens_first(cache.v, cache.layout);
    view.v_scales = tokens_first(cache.v_scales, cache.layout);
  }
  if (access.by_slots) {
    core::check_absent("kv_lengths", kv_lengths, "beside slots");
    core::check_absent("cache.page_table", cache.page_table, "beside slots");
    core::check_absent("cache.cu_kv", cache.cu_kv, "beside slots");
    return view;
  }
  if (ragged) {
    core::check_indices("cache.cu_kv", cache.cu_kv, "N+1", shapes, context);
    view.cu_kv = IndexSpan(cache.cu_kv);
    if (core::on_host(context)) check_offsets(view, shapes["N"]);
  } else {
    core::check_absent("cache.cu_kv", cache.cu_kv, "beside a cache that is not ragged");
  }
  if (paged) {
    core::check_indices("cache.page_table", cache.page_table, "N max_pages", shapes, context);
    view.page_table = IndexSpan(cache.page_table);
  } else {
    core::check_absent("cache.page_table", cache.page_table, "beside a cache without pages");
  }
  if (paged || kv_lengths.present()) {
    core::check_indices("kv_lengths", kv_lengths, "N", shapes, context);
    view.kv_lengths = IndexSpan(kv_lengths);
    if (core::on_host(context)) check_lengths(view, shapes["N"]);
  }
  return view;
}

}  // namespace hyla::attention
