// What DecodeParams and MtpParams share: rows of tokens with H key heads and HV value heads over
// one pool.
#pragma once

#include "problem/gdn_checks.h"
#include "problem/overlaps.h"

namespace hyla::gdn {

struct RowPatterns {
  core::Pattern keys, values, gates;
  bool ragged;
};
inline constexpr RowPatterns kOneToken = {"B H K", "B HV V", "B HV", false};
inline constexpr RowPatterns kUniform = {"B T H K", "B T HV V", "B T HV", false};
inline constexpr RowPatterns kRagged = {"total H K", "total HV V", "total HV", true};

inline core::Pattern pool_pattern(StateLayout layout) {
  return layout == StateLayout::kKV ? core::Pattern("slots HV K V") : core::Pattern("slots HV V K");
}

// Everything except slots and sequences, which need to know the rows first.
template <class Params>
void check_rows(Problem& p, const Params& params, const RowPatterns& patterns, core::Shapes& shapes,
                const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  const bool ragged = patterns.ragged;
  core::check_tensor("q", params.q, core::kFloatTypes, context, Inner::kContiguous, Access::kRead);
  shapes.match("q", params.q, patterns.keys);
  core::check_tensor("k", params.k, {params.q.dtype}, context, Inner::kContiguous, Access::kRead);
  shapes.match("k", params.k, patterns.keys);
  core::check_tensor("v", params.v, {params.q.dtype}, context, Inner::kContiguous, Access::kRead);
  shapes.match("v", params.v, patterns.values);
  core::check_head_dim("q", shapes["K"], "K");
  core::check_head_dim("v", shapes["V"], "V");
  check_value_heads(shapes["H"], shapes["HV"]);
  core::check_tensor("out", params.out, {params.q.dtype}, context, Inner::kContiguous,
                     Access::kWrite);
  shapes.match("out", params.out, patterns.values);
  check_gate(p.gate, params.gate, patterns.gates, shapes, ragged, context);
  check_beta(p.beta, params.beta, patterns.gates, shapes, ragged, context);
  check_norm(p.norm, params.norm, patterns.values, shapes, ragged, context);
  check_pool(p.initial, "state", params.state, pool_pattern(params.layout), params.layout,
             Inner::kContiguous, Access::kWrite, shapes, context);
  p.q_heads = p.k_heads = shapes["H"];
  p.heads = p.v_heads = shapes["HV"];
  p.K = shapes["K"];
  p.V = shapes["V"];
  set_tokens(p.q, params.q, ragged, true);
  set_tokens(p.k, params.k, ragged, true);
  set_tokens(p.v, params.v, ragged, true);
  set_tokens(p.out, params.out, ragged, true);
  p.final = p.initial;
  check_options(p, params.layout, params.scale, params.l2norm, params.l2norm_eps);
}

template <class Params>
void add_row_tensors(core::Overlaps& overlaps, const Params& params) {
  overlaps.writes("out", params.out);
  overlaps.writes("state", params.state);
  overlaps.reads("q", params.q);
  overlaps.reads("k", params.k);
  overlaps.reads("v", params.v);
  read_gates(overlaps, params);
  overlaps.reads("norm.z", params.norm.z);
  overlaps.reads("norm.weight", params.norm.weight);
  read_slot_tensors(overlaps, params);
}

}  // namespace hyla::gdn
