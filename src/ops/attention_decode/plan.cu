#include "ops/attention_decode/plan.h"

#include <algorithm>
#include <bit>
#include <numeric>

#ifdef HYLA_HAS_CUDA

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/attention/cache_places.h"

namespace hyla::attention::decode {
namespace {

int padded(std::int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

constexpr int kSmallPage = 32;

// Of entries, at the beginning.
constexpr std::size_t kEntryBytes = kMaxCtas * kWideCtas * 2 * sizeof(int4) + 16;

std::size_t bytes(std::int64_t pieces, std::int64_t rows, std::int64_t dim) {
  return static_cast<std::size_t>(pieces * rows) *
             (static_cast<std::size_t>(dim) * sizeof(float) + sizeof(float2)) +
         kEntryBytes;
}

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

std::int64_t largest_step(const Strides& strides) {
  const auto common = static_cast<std::uint64_t>(std::gcd(strides.outer, strides.token));
  return common == 0 ? 16 : std::int64_t{1} << std::min(std::countr_zero(common), 30);
}

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
  if (strides != value_strides(v, places)) return "keys and values have different strides";
  if (strides.span(places) / largest_step(strides) >= INT32_MAX || places.outers > kMostTokens) {
    return "pages lie too far apart";
  }
  return refuses_scales(problem.cache, places);
}

std::int64_t bytes_per(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// From one index to the next in bytes; the rows of a page table may lie farther apart.
bool fits(const IndexSpan& span) {
  const std::int64_t stride = span.column_stride != 0 ? span.column_stride : span.stride;
  return stride >= 0 && stride <= INT32_MAX / 8;
}

// Everything that the kernels count stays below 2^31.
const char* refuses_sizes(const RunProblem& problem) {
  const Queries& q = problem.queries;
  const CachePlaces places(problem.cache);
  const std::int64_t group = q.query_heads / q.kv_heads, capacity = room(places);
  const std::int64_t tokens = q.q.shape[0];
  if (q.rows > kMostTokens || capacity > kMostTokens || tokens * q.query_heads > kMostTokens) {
    return "more than 2^30 tokens";
  }
  const auto chunks = static_cast<double>(tokens * group / kWarpRows + q.rows);
  const double units =
      static_cast<double>(q.kv_heads) * chunks * (static_cast<double>(capacity) / kUnit + 1);
  if (units > INT32_MAX) return "more than 2^31 units of 16 keys";
  for (const IndexSpan& span :
       {q.cu_seqlens, q.starts, q.lengths, places.cu_kv, places.page_table, places.kv_lengths}) {
    if (!fits(span)) return "an index tensor has negative strides or some beyond 2^31 bytes";
  }
  const bool near = q.q.strides[0] <= INT32_MAX / 2 && q.q.strides[1] <= INT32_MAX / 2 &&
                    q.q.strides[0] >= 0 && q.q.strides[1] >= 0;
  return near ? nullptr : "queries have strides beyond 2^31 bytes";
}

Ints ints(const IndexSpan& span) {
  if (!span.present()) return {};
  const std::int64_t size = bytes_per(span.dtype);
  return {static_cast<const char*>(span.data), static_cast<int>(span.stride * size), size == 8};
}

QueryRows query_rows(const Queries& from) {
  QueryRows q;
  q.rows = static_cast<int>(from.rows);
  q.tokens = static_cast<int>(from.q.shape[0]);
  q.begins = ints(from.cu_seqlens.present() ? from.cu_seqlens : from.starts);
  q.lengths = ints(from.lengths);
  q.heads = static_cast<int>(from.query_heads);
  q.group = static_cast<int>(from.query_heads / from.kv_heads);
  q.by_group = Divider(static_cast<std::uint32_t>(q.group));
  q.data = static_cast<const char*>(from.q.data);
  q.token_bytes = static_cast<int>(2 * from.q.strides[0]);
  q.head_bytes = static_cast<int>(2 * from.q.strides[1]);
  q.dim = static_cast<int>(from.head_dim);
  q.bf16 = from.q.dtype == DType::kBFloat16;
  return q;
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
  const Strides strides = value_strides(k, places);
  const std::int64_t step = largest_step(strides);
  cache.step = static_cast<std::uint32_t>(step);
  cache.outer_steps = static_cast<std::uint32_t>(strides.outer / step);
  cache.token_steps = static_cast<std::uint32_t>(strides.token / step);
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

Output output_of(const Queries& from) {
  Output out;
  out.data = from.out.data;
  out.token_stride = from.out.strides[0];
  out.head_stride = from.out.strides[1];
  out.dtype = from.out.dtype;
  out.wide = device::aligned(out.data, 8) && out.token_stride % 4 == 0 && out.head_stride % 4 == 0;
  out.dim = static_cast<int>(from.value_dim);
  if (from.lse.present()) {
    out.lse = static_cast<float*>(from.lse.data);
    out.lse_token_stride = from.lse.strides[0];
    out.lse_head_stride = from.lse.strides[1];
  }
  if (from.sinks.present()) {
    out.sinks = from.sinks.data;
    out.sinks_dtype = from.sinks.dtype;
    out.sinks_stride = static_cast<int>(from.sinks.strides[0]);
  }
  return out;
}

void set_entries(Plan& plan, const Queries& q) {
  const std::int64_t rows = std::max<std::int64_t>(q.rows, 1), all = q.q.shape[0];
  const std::int64_t group = q.query_heads / q.kv_heads;
  const std::int64_t blocks = q.kv_heads / plan.heads, chunk = plan.rows() / plan.heads;
  const std::int64_t items =
      blocks * std::min(all * ((group + chunk - 1) / chunk), all * group / chunk + rows);
  plan.by_item = items <= plan.ctas;
  plan.entries = plan.by_item ? static_cast<int>(items) : plan.ctas;
}

// Of a CTA, for rows of so many keys at most.
int own_slots(std::int64_t keys) {
  constexpr std::int64_t kPartKeys = kPartUnits * kUnit;
  const std::int64_t parts = (std::max<std::int64_t>(keys, 1) + kPartKeys - 1) / kPartKeys;
  return 2 + static_cast<int>(std::min<std::int64_t>(parts, kMostParts));
}

}  // namespace

const char* refuses(const RunProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  const Queries& q = problem.queries;
  const DType stored = problem.cache.k.dtype;
  if (q.q.dtype == DType::kFloat32) return "queries are float32";
  if (stored != q.q.dtype && !one_byte(stored)) {
    return "the cache has neither the dtype of the queries nor one byte a value";
  }
  if (q.head_dim > 256 || q.value_dim > 256) return "head dim above 256";
  const TensorView& x = q.q;
  if (!device::aligned(x.data, 4) || x.strides[0] % 2 != 0 || x.strides[1] % 2 != 0) {
    return "queries are not aligned to 4 bytes";
  }
  if (const char* reason = refuses_layout(problem)) return reason;
  return refuses_sizes(problem);
}

Plan make_plan(const RunProblem& problem, std::int64_t most_packed, int multiprocessors) {
  const Queries& q = problem.queries;
  Plan plan;
  plan.dim = padded(std::max(q.head_dim, q.value_dim));
  // Lengths are on the device; their mean is known here, unless long ones are someone else's: then
  // the others may be drafts.
  const std::int64_t rows = std::max<std::int64_t>(q.rows, 1), all = q.q.shape[0];
  const std::int64_t group = q.query_heads / q.kv_heads;
  const std::int64_t mean = std::max<std::int64_t>(all / rows, 1);
  const bool unknown = most_packed < kAllRows;
  const bool many = mean * group > kWarpRows;
  if (one_byte(problem.cache.k.dtype)) {
    if (unknown ? group > kWarpRows : many) plan.sharing = 4;
  } else if (unknown || many) {
    plan.wide = q.scale > 0;  // it takes maxima before it multiplies
  }
  if (plan.sharing == 1 && !plan.wide) {
    if (plan.dim == 128 && q.kv_heads % 4 == 0) plan.heads = 4;
    // Small pages lie anywhere: more is read of each at a time.
    const bool small = problem.cache.kind == KvCache::Kind::kPaged &&
                       CachePlaces(problem.cache).tokens <= kSmallPage;
    if (plan.dim == 256 && q.kv_heads % 2 == 0 && small) plan.heads = 2;
  }
  plan.ctas = std::min(multiprocessors, kMaxCtas) * (plan.wide ? kWideCtas : 1);
  set_entries(plan, q);
  return plan;
}

Plan make_own_plan(const RunProblem& problem, int multiprocessors) {
  const Queries& q = problem.queries;
  Plan plan;
  plan.dim = padded(std::max(q.head_dim, q.value_dim));
  plan.ctas = std::min(multiprocessors, kMaxCtas);
  plan.own_bits = true;
  plan.slots = own_slots(room(CachePlaces(problem.cache)));
  set_entries(plan, q);
  return plan;
}

Arguments make_arguments(const RunProblem& problem, std::int64_t most_packed) {
  const Queries& q = problem.queries;
  constexpr float kLog2E = 1.4426950408889634f;
  Arguments a;
  a.q = query_rows(q);
  a.q.most_packed = static_cast<int>(std::min(most_packed, kAllRows));
  a.sight.causal = q.mask.causal;
  a.sight.window = static_cast<int>(std::min<std::int64_t>(q.mask.window, kMostTokens - 1));
  a.sight.chunk = static_cast<int>(std::min<std::int64_t>(q.mask.chunk, kMostTokens - 1));
  a.cache = cache_of(problem.cache, q.kv_heads);
  a.scale = static_cast<float>(q.scale) * kLog2E;
  a.softcap = static_cast<float>(q.softcap) * kLog2E;
  a.out = output_of(q);
  return a;
}

std::size_t workspace_bytes(const Plan& plan) {
  return bytes(std::int64_t{plan.ctas} * plan.slots, plan.rows(), plan.dim);
}

std::size_t workspace_bound(const RunBounds& bounds, int multiprocessors) {
  const std::int64_t dim = std::max(bounds.head_dim, bounds.value_dim);
  if (dim > 256 || bounds.io == DType::kFloat32) return 0;
  // The plan with most rows, and the one with most pieces.
  const std::int64_t ctas = std::min(multiprocessors, kMaxCtas);
  return std::max(bytes(ctas * kWideCtas * Plan().slots, kWideRows, padded(dim)),
                  bytes(ctas * own_slots(bounds.max_kv_length), kWarpRows, padded(dim)));
}

void set_workspace(Arguments& a, const Plan& plan, void* memory) {
  const std::int64_t rows = std::int64_t{plan.ctas} * plan.slots * plan.rows();
  a.pieces.entries = static_cast<int4*>(memory);
  a.pieces.items = reinterpret_cast<int*>(a.pieces.entries + 2 * kMaxCtas * kWideCtas);
  a.pieces.values = reinterpret_cast<float*>(static_cast<char*>(memory) + kEntryBytes);
  a.pieces.sums = reinterpret_cast<float2*>(a.pieces.values + rows * plan.dim);
  a.pieces.ctas = plan.ctas;
  a.pieces.slots = plan.slots;
  a.pieces.own_bits = plan.own_bits;
  a.pieces.by_item = plan.by_item;
}

}  // namespace hyla::attention::decode

#endif
