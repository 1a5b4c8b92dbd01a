// The half of a plan that does not depend on where keys and values live. On the host.
#pragma once

#include <hyla/attention_queries.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/alignment.h"
#include "ops/attention/factors.h"
#include "ops/attention_decode/arguments.h"

namespace hyla::attention::decode {

struct Plan {
  int dim = 0;         // D and DV padded to 64, 128 or 256
  int sharing = 1;     // warps of 8 query rows that read the same keys
  int heads = 1;       // KV heads that a CTA takes together
  bool wide = false;   // kernel_wide.cuh
  bool ahead = false;  // keys are fetched while lengths are read: Ahead
  int ctas = 0;
  int slots = 2;          // for pieces of a CTA
  bool own_bits = false;  // a row's depend on nothing but the row
  int entries = 0;        // items, or CTAs, that may have pieces
  bool by_item = false;
  Even even;

  int rows() const { return wide ? kWideRows : heads * sharing * kWarpRows; }
};

inline constexpr std::int64_t kAllRows = INT32_MAX;
inline constexpr std::int64_t kAnyRows = kAllRows - 1;  // all, of which the mean says nothing
inline constexpr const char* kFarIndices =
    "an index tensor has negative strides or some beyond 2^31 bytes";

// Of entries, at the beginning.
inline constexpr std::size_t kEntryBytes = kMaxCtas * kWideCtas * 2 * sizeof(int4) + 16;

inline std::size_t bytes(std::int64_t pieces, std::int64_t rows, std::int64_t dim) {
  return static_cast<std::size_t>(pieces * rows) *
             (static_cast<std::size_t>(dim) * sizeof(float) + sizeof(float2)) +
         kEntryBytes;
}

// So many of so many CTAs read nearly as fast as all do.
inline constexpr std::int64_t kEvenEnough = 31, kEvenOf = 32;

inline std::int64_t bytes_per(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// From one index to the next in bytes; the rows of a page table may lie farther apart.
inline bool fits(const IndexSpan& span) {
  const std::int64_t stride = span.column_stride != 0 ? span.column_stride : span.stride;
  return stride >= 0 && stride <= INT32_MAX / 8;
}

// kernel_wide.cuh takes maxima before it multiplies.
inline bool takes_wide(const Queries& q) { return has_factors(q) && q.softcap <= kLargeCap; }

// Everything that the kernels count stays below 2^31. `capacity`: keys of a row at most.
inline const char* refuses_queries(const Queries& q, std::int64_t capacity) {
  if (q.q.dtype == DType::kFloat32) return "queries are float32";
  if (q.head_dim > 256 || q.value_dim > 256) return "head dim above 256";
  const TensorView& x = q.q;
  if (!device::aligned(x.data, 4) || x.strides[0] % 2 != 0 || x.strides[1] % 2 != 0) {
    return "queries are not aligned to 4 bytes";
  }
  if (q.softcap > kMostCap) return "takes a soft cap up to 2^100";
  const std::int64_t group = q.query_heads / q.kv_heads;
  const std::int64_t tokens = q.q.shape[0];
  if (q.rows > kMostTokens || capacity > kMostTokens || tokens * q.query_heads > kMostTokens) {
    return "more than 2^30 tokens";
  }
  const auto chunks = static_cast<double>(tokens * group / kWarpRows + q.rows);
  const double units =
      static_cast<double>(q.kv_heads) * chunks * (static_cast<double>(capacity) / kUnit + 1);
  if (units > INT32_MAX) return "more than 2^31 units of 16 keys";
  if (!fits(q.cu_seqlens) || !fits(q.starts) || !fits(q.lengths)) return kFarIndices;
  const bool near = q.q.strides[0] <= INT32_MAX / 2 && q.q.strides[1] <= INT32_MAX / 2 &&
                    q.q.strides[0] >= 0 && q.q.strides[1] >= 0;
  return near ? nullptr : "queries have strides beyond 2^31 bytes";
}

inline Ints ints(const IndexSpan& span) {
  if (!span.present()) return {};
  const std::int64_t size = bytes_per(span.dtype);
  return {static_cast<const char*>(span.data), static_cast<int>(span.stride * size), size == 8};
}

inline QueryRows query_rows(const Queries& from) {
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

inline Output output_of(const Queries& from) {
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

// Do rows have more queries than a warp takes? Lengths are on the device; their mean is known here.
inline bool many_queries(const Queries& q) {
  const std::int64_t rows = std::max<std::int64_t>(q.rows, 1);
  const std::int64_t mean = std::max<std::int64_t>(q.q.shape[0] / rows, 1);
  return mean * (q.query_heads / q.kv_heads) > kWarpRows;
}

// Where rows have equally many queries, as the device may find that they have keys.
inline Even even_items(std::int64_t items, std::int64_t ctas) {
  constexpr std::int64_t kMostTogether = 2;  // of more, one that is cut matters less
  Even even;
  const std::int64_t group = items > 0 ? std::max<std::int64_t>(ctas / items, 1) : 0;
  const std::int64_t together = (items + ctas - 1) / ctas;
  if (group == 0 || together > kMostTogether || items % together != 0) return even;
  const std::int64_t used = items / together * group;
  if (used * kEvenOf < ctas * kEvenEnough) return even;
  even.items = static_cast<int>(items);
  even.ctas = static_cast<int>(used);
  even.group = static_cast<int>(group);
  even.together = static_cast<int>(together);
  even.by_group = Divider(static_cast<std::uint32_t>(group));
  return even;
}

inline void set_entries(Plan& plan, const Queries& q) {
  const std::int64_t rows = std::max<std::int64_t>(q.rows, 1), all = q.q.shape[0];
  const std::int64_t group = q.query_heads / q.kv_heads;
  const std::int64_t blocks = q.kv_heads / plan.heads, chunk = plan.rows() / plan.heads;
  const std::int64_t items =
      blocks * std::min(all * ((group + chunk - 1) / chunk), all * group / chunk + rows);
  plan.by_item = items <= (plan.own_bits ? plan.ctas : kFewItems);
  plan.entries = plan.by_item ? static_cast<int>(items) : plan.ctas;
  if (plan.wide && all % rows == 0) {
    plan.even = even_items(blocks * rows * ((all / rows * group + chunk - 1) / chunk), plan.ctas);
  }
}

// All arguments but the cache.
inline void set_queries(Arguments& a, const Queries& q, std::int64_t most_packed) {
  a.q = query_rows(q);
  a.q.most_queries = static_cast<int>(std::min(most_packed, kAllRows) / a.q.group);
  a.sight.causal = q.mask.causal;
  a.sight.window = static_cast<int>(std::min<std::int64_t>(q.mask.window, kMostTokens - 1));
  a.sight.chunk = static_cast<int>(std::min<std::int64_t>(q.mask.chunk, kMostTokens - 1));
  a.scale = static_cast<float>(q.scale) * kLog2E;
  a.softcap = static_cast<float>(q.softcap) * kLog2E;
  a.out = output_of(q);
}

// Of the pieces of a plan.
inline std::size_t workspace_bytes(const Plan& plan) {
  return bytes(std::int64_t{plan.ctas} * plan.slots, plan.rows(), plan.dim);
}

inline void set_workspace(Arguments& a, const Plan& plan, void* memory) {
  const std::int64_t rows = std::int64_t{plan.ctas} * plan.slots * plan.rows();
  a.pieces.entries = static_cast<int4*>(memory);
  a.pieces.items = reinterpret_cast<int*>(a.pieces.entries + 2 * kMaxCtas * kWideCtas);
  a.pieces.values = reinterpret_cast<float*>(static_cast<char*>(memory) + kEntryBytes);
  a.pieces.sums = reinterpret_cast<float2*>(a.pieces.values + rows * plan.dim);
  a.pieces.ctas = plan.ctas;
  a.pieces.by_ctas = Divider(static_cast<std::uint32_t>(plan.ctas));
  a.pieces.even = plan.even;
  a.pieces.slots = plan.slots;
  a.pieces.own_bits = plan.own_bits;
  a.pieces.by_item = plan.by_item;
}

}  // namespace hyla::attention::decode
