#include "core/on_host.h"
#include "problem/attention_checks.h"
#include "problem/overlaps.h"

namespace hyla::attention {
namespace {

using core::fail;
using core::text;

void check_rope(AppendProblem& problem, const Rope& rope, const Context& context) {
  if (!rope.cos.present()) {
    core::check_absent("rope.sin", rope.sin, "without rope.cos");
    return;
  }
  core::Shapes shapes;
  core::check_tensor("rope.cos", rope.cos, {DType::kFloat32}, context, core::Inner::kAny,
                     core::Access::kRead);
  shapes.match("rope.cos", rope.cos, "positions R/2");
  core::check_tensor("rope.sin", rope.sin, {DType::kFloat32}, context, core::Inner::kAny,
                     core::Access::kRead);
  shapes.match("rope.sin", rope.sin, "positions R/2");
  if (shapes["R/2"] < 1 || 2 * shapes["R/2"] > problem.head_dim) {
    fail("rope.cos", "1 to " + text(problem.head_dim / 2) + " columns, one a pair of values",
         text(shapes["R/2"]));
  }
  problem.cos = rope.cos;
  problem.sin = rope.sin;
  problem.interleaved = rope.interleaved;
}

// Where tokens go without rows: all of them are one row's.
void check_slots(AppendProblem& problem, const AppendParams& params, core::Shapes& shapes,
                 const Context& context) {
  core::check_absent("cu_seqlens", params.cu_seqlens, "beside slots");
  core::check_absent("starts", params.starts, "beside slots");
  core::check_absent("lengths", params.lengths, "beside slots");
  core::check_indices("slots", params.slots, "total", shapes, context);
  problem.slots = IndexSpan(params.slots);
  problem.sequences.rows = 1;
  problem.sequences.tokens = shapes["total"];
  if (!params.rope.cos.present()) {
    core::check_absent("positions", params.positions, "without rope.cos");
    return;
  }
  if (!params.positions.present()) {
    fail("positions", "the position of each token, because rope is given beside slots", "none");
  }
  core::check_indices("positions", params.positions, "total", shapes, context);
  problem.positions = IndexSpan(params.positions);
}

void check_slot_values(const AppendProblem& problem) {
  const TensorView& k = problem.cache.k;
  const bool ragged = problem.cache.kind == KvCache::Kind::kRagged;
  const std::int64_t tokens = ragged ? k.shape[0] : k.shape[1], outers = ragged ? 1 : k.shape[0];
  for (std::int64_t i = 0; i < problem.sequences.tokens; ++i) {
    const std::int64_t slot = problem.slots.at(i);
    if (slot < 0) continue;
    if (tokens == 0 || slot / tokens >= outers) {
      fail("slots", "slots of a cache of " + text(outers) + " x " + text(tokens) + " tokens",
           text(slot) + " at index " + text(i));
    }
    if (!problem.positions.present()) continue;
    const std::int64_t position = problem.positions.at(i);
    if (position < 0 || position >= problem.cos.shape[0]) {
      fail("positions", "rows of rope.cos, from 0 to " + text(problem.cos.shape[0] - 1),
           text(position) + " at index " + text(i));
    }
  }
}

void check_rows(const AppendProblem& problem) {
  for (std::int64_t row = 0; row < problem.sequences.rows; ++row) {
    const std::int64_t added = problem.sequences.length(row), length = problem.cache.length(row);
    if (length < added) {
      fail("kv_lengths", "lengths after the append, at least the " + text(added) + " tokens added",
           text(length) + " in row " + text(row));
    }
    check_pages(problem.cache, row, {length - added, length});
    if (added > 0 && problem.cos.present() && length > problem.cos.shape[0]) {
      fail("rope.cos", "a row for each of " + text(length) + " positions",
           text(problem.cos.shape[0]));
    }
  }
}

}  // namespace

AppendProblem validate(const AppendParams& params, const Context& context) {
  core::check_context(context);
  AppendProblem problem;
  core::Shapes shapes;
  core::check_tensor("k", params.k, core::kFloatTypes, context, core::Inner::kContiguous,
                     core::Access::kRead);
  shapes.match("k", params.k, "total Hk D");
  const bool with_values = params.v.present() || params.cache.v.present();
  if (with_values) {
    core::check_tensor("v", params.v, {params.k.dtype}, context, core::Inner::kContiguous,
                       core::Access::kRead);
    shapes.match("v", params.v, "total Hk DV");
    problem.value_dim = shapes["DV"];
  } else {
    core::check_absent("cache.v_scales", params.cache.v_scales, "without cache.v");
  }
  check_dims("k", shapes["D"], "v", problem.value_dim);
  const bool by_slots = params.slots.present();
  if (by_slots) {
    check_slots(problem, params, shapes, context);
  } else {
    core::check_absent("positions", params.positions, "without slots");
    core::check_sequences(problem.sequences, {params.cu_seqlens, params.starts, params.lengths},
                          shapes["total"], context);
    shapes.bind("N", problem.sequences.rows);
  }
  if (params.given_scales && !params.cache.k_scales.present()) {
    fail("given_scales", "scales in the cache to divide by", "none");
  }
  problem.given_scales = params.given_scales;
  const core::Access scales = params.given_scales ? core::Access::kRead : core::Access::kWrite;
  problem.cache = check_cache(params.cache, params.kv_lengths, shapes,
                              {core::Access::kWrite, scales, by_slots}, with_values, context);
  problem.heads = shapes["Hk"];
  problem.head_dim = shapes["D"];
  problem.k = params.k;
  problem.v = params.v;
  check_rope(problem, params.rope, context);
  if (core::on_host(context)) by_slots ? check_slot_values(problem) : check_rows(problem);
  core::Overlaps overlaps;
  overlaps.writes("cache.k", params.cache.k);
  overlaps.writes("cache.v", params.cache.v);
  if (params.given_scales) {
    overlaps.reads("cache.k_scales", params.cache.k_scales);
    overlaps.reads("cache.v_scales", params.cache.v_scales);
  } else {
    overlaps.writes("cache.k_scales", params.cache.k_scales);
    overlaps.writes("cache.v_scales", params.cache.v_scales);
  }
  overlaps.reads("k", params.k);
  overlaps.reads("v", params.v);
  read_sequence_tensors(overlaps, params);
  overlaps.reads("kv_lengths", params.kv_lengths);
  overlaps.reads("slots", params.slots);
  overlaps.reads("positions", params.positions);
  overlaps.reads("cache.cu_kv", params.cache.cu_kv);
  overlaps.reads("cache.page_table", params.cache.page_table);
  overlaps.reads("rope.cos", params.rope.cos);
  overlaps.reads("rope.sin", params.rope.sin);
  overlaps.check();
  return problem;
}

}  // namespace hyla::attention
