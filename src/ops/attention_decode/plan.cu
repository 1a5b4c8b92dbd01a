#include "ops/attention_decode/plan.h"

#include <bit>
#include <numeric>

#ifdef HYLA_HAS_CUDA

#include "device/launch.h"
#include "ops/attention/cache_places.h"
#include "ops/attention/padded_dim.h"

namespace hyla::attention::decode {
namespace {

constexpr int kSmallPage = 32;

bool one_byte(DType dtype) { return size_of(dtype) == 1; }

std::int64_t row_bytes(const CacheTensor& x, std::int64_t stride) {
  return stride * static_cast<std::int64_t>(size_of(x.dtype));
}

bool aligned(const CacheTensor& x) {
  const bool good = device::aligned(x.data, 16);
  return good && row_bytes(x, x.outer_stride) % 16 == 0 && row_bytes(x, x.token_stride) % 16 == 0 &&
         row_bytes(x, x.head_stride) % 16 == 0 && row_bytes(x, x.width) % 16 == 0;
}

bool falling(const CacheTensor& x) {
  return x.outer_stride < 0 || x.token_stride < 0 || x.head_stride < 0;
}

// Strides that step over a single thing say nothing.
struct Strides {
  std::int64_t outer, token;
  Strides(const CacheTensor& x, const CachePlaces& places, std::int64_t size)
      : outer(places.outers > 1 ? x.outer_stride * size : 0),
        token(places.tokens > 1 ? x.token_stride * size : 0) {}
  bool operator==(const Strides&) const = default;
  std::int64_t span(const CachePlaces& places) const {
    return (places.outers - 1) * outer + (places.tokens - 1) * token;
  }
};

Strides value_strides(const CacheTensor& x, const CachePlaces& places) {
  return {x, places, static_cast<std::int64_t>(size_of(x.dtype))};
}

// Rows lie at multiples of a step, which fits 31 bits.
struct Steps {
  std::int64_t size = 0, outer = 0, token = 0;

  explicit Steps(const Strides& strides) : size(std::gcd(strides.outer, strides.token)) {
    if (size == 0) size = 16;
    if (size > INT32_MAX) {
      const int zeros = std::countr_zero(static_cast<std::uint64_t>(size));
      size = std::int64_t{1} << std::min(zeros, 30);
    }
    outer = strides.outer / size;
    token = strides.token / size;
  }
  bool as_many(const Steps& other) const { return outer == other.outer && token == other.token; }
};

const char* refuses_scales(const CacheView& cache, const CachePlaces& places) {
  if (!cache.quantised()) return nullptr;
  const CacheTensor k(cache.k_scales, cache.kind), v(cache.v_scales, cache.kind);
  if (k.width != 1 || v.width != 1) return "has more than one scale a token and head";
  const Strides strides(k, places, 1);
  if (strides != Strides(v, places, 1) || k.head_stride != v.head_stride) {
    return "scales of keys and values have different strides";
  }
  return falling(k) || strides.span(places) > INT32_MAX ? "scales lie too far apart" : nullptr;
}

std::int64_t room(const CachePlaces& places) {
  const bool paged = places.kind == KvCache::Kind::kPaged;
  return paged ? places.page_table.columns * places.tokens : places.tokens;
}

const char* refuses_layout(const RunProblem& problem) {
  const CachePlaces places(problem.cache);
  const CacheTensor k(problem.cache.k, problem.cache.kind), v(problem.cache.v, problem.cache.kind);
  if (!aligned(k) || !aligned(v)) return "rows of the cache are not aligned to 16 bytes";
  if (falling(k) || falling(v)) return "strides of the cache are negative";
  const Strides strides = value_strides(k, places);
  const Steps steps(strides);
  if (!steps.as_many(Steps(value_strides(v, places)))) {
    return "pages of keys and of values are laid out differently";
  }
  if (strides.span(places) / steps.size >= INT32_MAX || places.outers > kMostTokens) {
    return "pages lie too far apart";
  }
  return refuses_scales(problem.cache, places);
}

Cache cache_of(const CacheView& from, std::int64_t kv_heads) {
  const CachePlaces places(from);
  const CacheTensor k(from.k, from.kind), v(from.v, from.kind);
  Cache cache;
  cache.kind = from.kind == KvCache::Kind::kPaged    ? Kind::kPaged
               : from.kind == KvCache::Kind::kRagged ? Kind::kRagged
                                                     : Kind::kDense;
  cache.kv_heads = static_cast<int>(kv_heads);
  cache.tokens = static_cast<int>(places.tokens);
  cache.outers = static_cast<int>(places.outers);
  cache.units_in_line = cache.kind != Kind::kPaged || cache.tokens % kUnit == 0;
  cache.capacity = static_cast<int>(room(places));
  cache.lengths = ints(places.kv_lengths);
  cache.begins = ints(places.cu_kv);
  if (cache.kind == Kind::kPaged) {
    const IndexSpan& table = places.page_table;
    const std::int64_t size = bytes_per(table.dtype);
    cache.table = static_cast<const char*>(table.data);
    cache.table_row_bytes = table.stride * size;
    cache.table_bytes = static_cast<int>(table.column_stride * size);
    cache.wide_table = size == 8;
    cache.page_of = Divider(static_cast<std::uint32_t>(places.tokens));
  }
  cache.k = static_cast<const char*>(k.data);
  cache.v = static_cast<const char*>(v.data);
  cache.k_head_bytes = row_bytes(k, k.head_stride);
  cache.v_head_bytes = row_bytes(v, v.head_stride);
  cache.k_chunks = static_cast<int>(row_bytes(k, k.width) / 16);
  cache.v_chunks = static_cast<int>(row_bytes(v, v.width) / 16);
  const Steps steps(value_strides(k, places));
  cache.k_step = static_cast<std::uint32_t>(steps.size);
  cache.v_step = static_cast<std::uint32_t>(Steps(value_strides(v, places)).size);
  cache.outer_steps = static_cast<std::uint32_t>(steps.outer);
  cache.token_steps = static_cast<std::uint32_t>(steps.token);
  if (from.quantised()) {
    const CacheTensor scales(from.k_scales, from.kind);
    const Strides own(scales, places, 1);
    cache.k_scales = static_cast<const float*>(scales.data);
    cache.v_scales = static_cast<const float*>(from.v_scales.data);
    cache.scale_outer = static_cast<std::uint32_t>(own.outer);
    cache.scale_token = static_cast<std::uint32_t>(own.token);
    cache.scale_head = scales.head_stride;
  }
  return cache;
}

std::int64_t units_of(std::int64_t keys) {
  return std::max<std::int64_t>((keys + kUnit - 1) / kUnit, 1);
}

// Of a CTA: two for what it begins, in turns, and one for each part of an item from before that
// begins in its share. row, all: units of a row and of all items, at most.
int own_slots(std::int64_t row, std::int64_t all, std::int64_t ctas) {
  const std::int64_t share = std::min(row, (all + ctas - 1) / ctas);
  const std::int64_t parts = (share + kPartUnits - 1) / kPartUnits;
  return 2 + static_cast<int>(std::min<std::int64_t>(parts, kMostParts));
}

// Units of all items where a row has one for each KV head.
std::int64_t all_units(const RunProblem& problem) {
  const Queries& q = problem.queries;
  const CachePlaces places(problem.cache);
  const std::int64_t rows = places.kind == KvCache::Kind::kRagged ? places.tokens / kUnit + q.rows
                                                                  : q.rows * units_of(room(places));
  return q.kv_heads * rows;
}

// Heads of which a CTA reads the rows together: short rows are read faster so.
int heads_together(const RunProblem& problem, const Plan& plan) {
  constexpr std::int64_t kLeast = 24;  // units of a CTA; with fewer, more pieces cost more
  if (problem.queries.kv_heads % 4 != 0) return 1;
  if (plan.dim == 128) return 4;
  const bool many = all_units(problem) >= kLeast * plan.ctas;
  return plan.dim == 64 && !one_byte(problem.cache.k.dtype) && many ? 4 : 1;
}

// Does the kernel of Ahead shapes gain, and does what it takes for granted hold?
bool fetches_ahead(const RunProblem& problem, const Plan& plan) {
  constexpr std::int64_t kMost = 1 << 22;  // times a number of CTAs it stays below 2^31
  const Queries& q = problem.queries;
  const CachePlaces places(problem.cache);
  if (plan.wide || plan.sharing != 1) return false;
  if (plan.dim != 256 && (plan.heads != 4 || one_byte(problem.cache.k.dtype))) return false;
  if (places.kind != KvCache::Kind::kPaged || bytes_per(places.page_table.dtype) != 4) return false;
  if (q.head_dim != plan.dim || q.value_dim != plan.dim) return false;
  if (q.mask.window != 0 || q.mask.chunk != 0) return false;
  if (q.rows > kMost || room(places) > kMost) return false;
  const std::int64_t least = one_byte(problem.cache.k.dtype) ? 4 * kLeastAhead : kLeastAhead;
  return all_units(problem) / plan.heads >= least * plan.ctas;
}

}  // namespace

const char* refuses(const RunProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  const Queries& q = problem.queries;
  const DType stored = problem.cache.k.dtype;
  const CachePlaces places(problem.cache);
  if (const char* reason = refuses_queries(q, room(places))) return reason;
  if (stored != q.q.dtype && !one_byte(stored)) {
    return "the cache has neither the dtype of the queries nor one byte a value";
  }
  if (!fits(places.cu_kv) || !fits(places.page_table) || !fits(places.kv_lengths)) {
    return kFarIndices;
  }
  return refuses_layout(problem);
}

Plan make_plan(const RunProblem& problem, std::int64_t most_packed, int multiprocessors) {
  const Queries& q = problem.queries;
  Plan plan;
  plan.dim = padded_dim(std::max(q.head_dim, q.value_dim));
  // Where long rows are someone else's, the mean says nothing: the others may be drafts.
  const bool unknown = most_packed < kAllRows, many = many_queries(q);
  if (one_byte(problem.cache.k.dtype)) {
    if (unknown ? q.query_heads / q.kv_heads > kWarpRows : many) plan.sharing = 4;
  } else if (unknown || many) {
    plan.wide = takes_wide(q);
  }
  plan.ctas = std::min(multiprocessors, kMaxCtas) * (plan.wide ? kWideCtas : 1);
  if (plan.sharing == 1 && !plan.wide) plan.heads = heads_together(problem, plan);
  plan.ahead = fetches_ahead(problem, plan);
  if (plan.sharing == 1 && !plan.wide && !plan.ahead) {
    // Small pages lie anywhere: more is read of each at a time, where a row is short.
    const bool small = problem.cache.kind == KvCache::Kind::kPaged &&
                       one_byte(problem.cache.k.dtype) &&
                       CachePlaces(problem.cache).tokens <= kSmallPage;
    if (plan.dim == 256 && q.kv_heads % 2 == 0 && small) plan.heads = 2;
  }
  set_entries(plan, q);
  return plan;
}

Plan make_own_plan(const RunProblem& problem, int multiprocessors) {
  const Queries& q = problem.queries;
  Plan plan;
  plan.dim = padded_dim(std::max(q.head_dim, q.value_dim));
  plan.ctas = std::min(multiprocessors, kMaxCtas);
  plan.own_bits = true;
  plan.slots = own_slots(units_of(room(CachePlaces(problem.cache))), all_units(problem), plan.ctas);
  set_entries(plan, q);
  return plan;
}

Arguments make_arguments(const RunProblem& problem, std::int64_t most_packed) {
  Arguments a;
  set_queries(a, problem.queries, most_packed);
  a.cache = cache_of(problem.cache, problem.queries.kv_heads);
  return a;
}

std::size_t workspace_bound(const RunBounds& bounds, int multiprocessors) {
  const std::int64_t dim = std::max(bounds.head_dim, bounds.value_dim);
  if (dim > 256 || bounds.io == DType::kFloat32) return 0;
  // The plan with most rows, and the one with most pieces.
  const std::int64_t ctas = std::min(multiprocessors, kMaxCtas);
  const std::int64_t longest = kMostParts * kPartUnits * ctas;  // beyond that slots stay as many
  const std::int64_t row = std::min(units_of(bounds.max_kv_length), longest) + 1;  // of ragged rows
  const std::int64_t all = bounds.max_sequences * bounds.kv_heads * row;
  const std::int64_t slots = own_slots(all, all, ctas);
  return std::max(bytes(ctas * kWideCtas * Plan().slots, kWideRows, padded_dim(dim)),
                  bytes(ctas * slots, kWarpRows, padded_dim(dim)));
}

}  // namespace hyla::attention::decode

#endif
