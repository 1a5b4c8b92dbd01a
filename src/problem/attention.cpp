#include "problem/attention.h"

#include <algorithm>
#include <cmath>

#include "core/on_host.h"
#include "problem/attention_checks.h"
#include "problem/overlaps.h"

namespace hyla::attention {
namespace {

using core::fail;
using core::text;

Mask check_mask(const RunParams& params) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;  // positions stay inside int64
  if (params.window < 0) fail("window", "a number of positions >= 0", text(params.window));
  if (params.chunk < 0) fail("chunk", "a number of positions >= 0", text(params.chunk));
  if (params.window > 0 && params.chunk > 0) {
    fail("chunk", "0 beside a window", text(params.chunk));
  }
  return {params.causal, std::min(params.window, kLargest), std::min(params.chunk, kLargest)};
}

// Everything but the cache. Binds N, total, Hq, D and DV.
Queries check_query_side(const RunParams& params, core::Shapes& shapes, const Context& context) {
  core::check_context(context);
  Queries queries;
  core::check_tensor("q", params.q, core::kFloatTypes, context, core::Inner::kContiguous,
                     core::Access::kRead);
  shapes.match("q", params.q, "total Hq D");
  core::check_tensor("out", params.out, {params.q.dtype}, context, core::Inner::kContiguous,
                     core::Access::kWrite);
  shapes.match("out", params.out, "total Hq DV");
  check_dims("q", shapes["D"], "out", shapes["DV"]);
  core::Sequences sequences;
  core::check_sequences(sequences, {params.cu_seqlens, params.starts, params.lengths},
                        shapes["total"], context);
  queries.rows = sequences.rows;
  shapes.bind("N", queries.rows);
  queries.mask = check_mask(params);
  if (params.sinks.present()) {
    core::check_tensor("sinks", params.sinks, core::kFloatTypes, context, core::Inner::kAny,
                       core::Access::kRead);
    shapes.match("sinks", params.sinks, "Hq");
  }
  if (!std::isfinite(params.softcap) || params.softcap < 0) {
    fail("softcap", "a finite number >= 0", text(params.softcap));
  }
  core::check_scale(params.scale);
  if (params.lse.present()) {
    core::check_tensor("lse", params.lse, {DType::kFloat32}, context, core::Inner::kAny,
                       core::Access::kWrite);
    shapes.match("lse", params.lse, "total Hq");
  }
  queries.cu_seqlens = IndexSpan(params.cu_seqlens);
  queries.starts = IndexSpan(params.starts);
  queries.lengths = IndexSpan(params.lengths);
  queries.query_heads = shapes["Hq"];
  queries.head_dim = shapes["D"];
  queries.value_dim = shapes["DV"];
  queries.q = params.q;
  queries.out = params.out;
  queries.lse = params.lse;
  queries.sinks = params.sinks;
  queries.scale = params.scale.value_or(1.0 / std::sqrt(static_cast<double>(queries.head_dim)));
  queries.softcap = params.softcap;
  return queries;
}

void check_heads(Queries& queries, std::int64_t kv_heads) {
  if (queries.query_heads < 1 || queries.query_heads % kv_heads != 0) {
    fail("q", "a multiple of the " + text(kv_heads) + " KV heads",
         text(queries.query_heads) + " heads");
  }
  queries.kv_heads = kv_heads;
}

void add_query_side(core::Overlaps& overlaps, const RunParams& params) {
  overlaps.writes("out", params.out);
  overlaps.writes("lse", params.lse);
  overlaps.reads("q", params.q);
  read_sequence_tensors(overlaps, params);
  overlaps.reads("kv_lengths", params.kv_lengths);
  overlaps.reads("sinks", params.sinks);
}

}  // namespace

RunProblem validate(const RunParams& params, const Context& context) {
  core::Shapes shapes;
  // Made where they stay: a copy of what was just written waits for it.
  RunProblem problem{check_query_side(params, shapes, context),
                     check_cache(params.cache, params.kv_lengths, shapes,
                                 {core::Access::kRead, core::Access::kRead}, true, context)};
  check_heads(problem.queries, shapes["Hk"]);
  if (core::on_host(context)) {
    for (std::int64_t row = 0; row < problem.queries.rows; ++row) {
      check_pages(problem.cache, row, problem.queries.seen(row, problem.cache.length(row)));
    }
  }
  core::Overlaps overlaps;
  add_query_side(overlaps, params);
  overlaps.reads("cache.k", params.cache.k);
  overlaps.reads("cache.v", params.cache.v);
  overlaps.reads("cache.k_scales", params.cache.k_scales);
  overlaps.reads("cache.v_scales", params.cache.v_scales);
  overlaps.reads("cache.cu_kv", params.cache.cu_kv);
  overlaps.reads("cache.page_table", params.cache.page_table);
  overlaps.check();
  return problem;
}

Queries check_queries(const RunParams& params, std::int64_t kv_heads, const Context& context) {
  if (params.cache.kind != KvCache::Kind::kNone) {
    fail("cache", "none beside operands, which say where keys and values live", "a cache");
  }
  core::check_absent("kv_lengths", params.kv_lengths, "beside operands, which know their lengths");
  if (kv_heads < 1) fail("kv_heads", "at least one head", text(kv_heads));
  core::Shapes shapes;
  Queries queries = check_query_side(params, shapes, context);
  check_heads(queries, kv_heads);
  core::Overlaps overlaps;
  add_query_side(overlaps, params);
  overlaps.check();
  return queries;
}

}  // namespace hyla::attention
