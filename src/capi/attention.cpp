#include <hyla/attention.h>

#include <cstddef>

#include "capi/fields.h"
#include "capi/params.h"
#include "capi/status.h"
#include "core/check.h"

namespace hyla::capi {
namespace {

attention::KvLayout kv_layout(std::int32_t value) {
  if (value == HYLA_KV_NHD) return attention::KvLayout::kNHD;
  if (value == HYLA_KV_HND) return attention::KvLayout::kHND;
  core::fail("cache.layout", "HYLA_KV_NHD or HYLA_KV_HND", core::text(std::int64_t{value}));
}

attention::KvCache::Kind kv_kind(std::int32_t value) {
  using Kind = attention::KvCache::Kind;
  switch (value) {
    case HYLA_KV_NONE:
      return Kind::kNone;
    case HYLA_KV_DENSE:
      return Kind::kDense;
    case HYLA_KV_RAGGED:
      return Kind::kRagged;
    case HYLA_KV_PAGED:
    case HYLA_KV_FUSED:
    case HYLA_KV_BLOCKS:
      return Kind::kPaged;
    default:
      core::fail("cache.kind", "a hyla_kv_kind", core::text(std::int64_t{value}));
  }
}

attention::KvCache cache(const hyla_kv_cache& given) {
  attention::KvCache result;
  result.kind = kv_kind(given.kind);
  result.layout = kv_layout(given.layout);
  result.k = view("cache.k", given.k);
  result.v = view("cache.v", given.v);
  result.page_table = view("cache.page_table", given.page_table);
  if (given.kind == HYLA_KV_FUSED || given.kind == HYLA_KV_BLOCKS) {
    core::check_absent("cache.v", result.v, "because cache.k holds keys and values");
    if (given.kind == HYLA_KV_BLOCKS && result.layout != attention::KvLayout::kNHD) {
      core::fail("cache.layout", "HYLA_KV_NHD for blocks", "HYLA_KV_HND");
    }
    result = given.kind == HYLA_KV_FUSED
                 ? attention::KvCache::fused(result.k, result.page_table, result.layout)
                 : attention::KvCache::blocks(result.k, given.layer, result.page_table);
  }
  result.k_scales = view("cache.k_scales", given.k_scales);
  result.v_scales = view("cache.v_scales", given.v_scales);
  result.cu_kv = view("cache.cu_kv", given.cu_kv);
  return result;
}

}  // namespace

attention::RunParams params(const hyla_attention_run_params* given) {
  const auto c = whole("params", given, offsetof(hyla_attention_run_params, cu_seqlens));
  attention::RunParams p;
  p.q = view("q", c.q);
  p.cache = cache(c.cache);
  p.out = view("out", c.out);
  take_sequences(p, c);
  p.kv_lengths = view("kv_lengths", c.kv_lengths);
  p.causal = switched("causal", c.causal, p.causal);
  p.window = c.window;
  p.chunk = c.chunk;
  p.sinks = view("sinks", c.sinks);
  p.softcap = c.softcap;
  p.scale = given_if(c.has_scale, c.scale);
  p.lse = view("lse", c.lse);
  p.impl = c.impl;
  return p;
}

Workspace workspace(const hyla_attention_run_params* given, const Context& context) {
  const auto c = whole("params", given, offsetof(hyla_attention_run_params, cu_seqlens));
  return {c.workspace, c.workspace_bytes, context.device};
}

attention::AppendParams params(const hyla_attention_append_params* given) {
  const auto c = whole("params", given, offsetof(hyla_attention_append_params, cu_seqlens));
  attention::AppendParams p;
  p.cache = cache(c.cache);
  p.k = view("k", c.k);
  p.v = view("v", c.v);
  take_sequences(p, c);
  p.kv_lengths = view("kv_lengths", c.kv_lengths);
  p.rope.cos = view("rope.cos", c.rope.cos);
  p.rope.sin = view("rope.sin", c.rope.sin);
  p.rope.interleaved = c.rope.interleaved != 0;
  p.given_scales = c.given_scales != 0;
  p.slots = view("slots", c.slots);
  p.positions = view("positions", c.positions);
  p.impl = c.impl;
  return p;
}

attention::MergeParams params(const hyla_attention_merge_params* given) {
  const auto c = whole("params", given, offsetof(hyla_attention_merge_params, lse));
  attention::MergeParams p;
  p.a = view("a", c.a);
  p.a_lse = view("a_lse", c.a_lse);
  p.b = view("b", c.b);
  p.b_lse = view("b_lse", c.b_lse);
  p.out = view("out", c.out);
  p.lse = view("lse", c.lse);
  p.impl = c.impl;
  return p;
}

attention::RunBounds bounds(const hyla_attention_run_bounds* given) {
  const auto c = whole("bounds", given, offsetof(hyla_attention_run_bounds, device));
  attention::RunBounds b;
  b.max_sequences = c.max_sequences;
  b.max_tokens = c.max_tokens;
  b.max_kv_length = c.max_kv_length;
  b.query_heads = c.query_heads;
  b.kv_heads = c.kv_heads;
  b.head_dim = c.head_dim;
  b.value_dim = c.value_dim;
  b.io = io_type("bounds.io", c.io);
  b.cache = io_type("bounds.cache", c.cache, DType::kNone);
  b.device = device("bounds.device", c.device);
  return b;
}

}  // namespace hyla::capi

using hyla::capi::guarded;

extern "C" {

hyla_status hyla_attention_run(const hyla_attention_run_params* params,
                               const hyla_context* context) {
  return guarded([&] {
    const hyla::Context where = hyla::capi::context(context);
    hyla::attention::run(hyla::capi::params(params), hyla::capi::workspace(params, where), where);
  });
}

hyla_status hyla_attention_append(const hyla_attention_append_params* params,
                                  const hyla_context* context) {
  return guarded(
      [&] { hyla::attention::append(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_attention_merge(const hyla_attention_merge_params* params,
                                 const hyla_context* context) {
  return guarded(
      [&] { hyla::attention::merge(hyla::capi::params(params), hyla::capi::context(context)); });
}

hyla_status hyla_attention_run_workspace_bytes(const hyla_attention_run_bounds* bounds,
                                               size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) hyla::core::fail("bytes", "a pointer to the result", "a null pointer");
    *bytes = hyla::attention::run_workspace_bytes(hyla::capi::bounds(bounds));
  });
}

}  // extern "C"
