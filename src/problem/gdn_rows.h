// What DecodeParams and MtpParams share: rows of tokens with H key heads and HV value heads over
// one pool.
#pragma once

#include "problem/gdn.h"
#include "problem/overlaps.h"

namespace hyla::gdn {

struct RowPatterns {
  std::string_view keys, values, gates;
};
inline constexpr RowPatterns kOneToken = {"B H K", "B HV V", "B HV"};
inline constexpr RowPatterns kUniform = {"B T H K", "B T HV V", "B T HV"};
inline constexpr RowPatterns kRagged = {"total H K", "total HV V", "total HV"};

inline std::string_view pool_pattern(StateLayout layout) {
  return layout == StateLayout::kKV ? "slots HV K V" : "slots HV V K";
}

// Everything except slots and sequences, which need to know the rows first.
template <class Params>
void check_rows(Problem& p, const Params& params, const RowPatterns& patterns, core::Shapes& shapes,
                const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  const bool ragged = patterns.keys == kRagged.keys;
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
  p.gate = check_gate(params.gate, patterns.gates, shapes, ragged, context);
  p.beta = check_beta(params.beta, patterns.gates, shapes, ragged, context);
  p.norm = check_norm(params.norm, patterns.values, shapes, ragged, context);
  p.initial = check_pool("state", params.state, pool_pattern(params.layout), params.layout,
                         Inner::kContiguous, Access::kWrite, shapes, context);
  p.final = p.initial;
  p.q_heads = p.k_heads = shapes["H"];
  p.heads = p.v_heads = shapes["HV"];
  p.K = shapes["K"];
  p.V = shapes["V"];
  p.q = token_view(params.q, ragged, true);
  p.k = token_view(params.k, ragged, true);
  p.v = token_view(params.v, ragged, true);
  p.out = token_view(params.out, ragged, true);
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
