#include "problem/gdn_recurrence.h"

#include "problem/gdn_checks.h"
#include "problem/overlaps.h"

namespace hyla::gdn {
namespace {

void check_sizes(const RecurrenceParams& params) {
  if (params.key_heads < 1) core::fail("key_heads", "a number >= 1", core::text(params.key_heads));
  if (params.value_heads < 1 || params.value_heads % params.key_heads != 0) {
    core::fail("value_heads", "a multiple of the " + core::text(params.key_heads) + " key heads",
               core::text(params.value_heads));
  }
  core::check_head_dim("key_dim", params.key_dim, "K");
  core::check_head_dim("value_dim", params.value_dim, "V");
  constexpr std::int64_t kMaxHeads =
      1 << 20;  // keeps every product of heads and dims far from overflow
  if (params.value_heads > kMaxHeads) {
    core::fail("value_heads", "at most " + core::text(kMaxHeads), core::text(params.value_heads));
  }
}

// A block of heads inside the packed rows.
core::TokenView packed(const TensorView& rows, std::int64_t first_channel, std::int64_t dim) {
  if (rows.shape[0] == 0) return {rows.data, rows.dtype, 0, 0, 0, 0};  // data may be null
  const std::int64_t channel = rows.strides[1];
  const std::int64_t bytes =
      first_channel * channel * static_cast<std::int64_t>(size_of(rows.dtype));
  return {static_cast<char*>(rows.data) + bytes,
          rows.dtype,
          0,
          rows.strides[0],
          dim * channel,
          channel};
}

}  // namespace

RecurrenceProblem validate(const RecurrenceParams& params, const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  RecurrenceProblem p;
  check_sizes(params);
  const std::int64_t H = params.key_heads, HV = params.value_heads;
  p.K = params.key_dim;
  p.V = params.value_dim;
  core::Shapes shapes;
  shapes.bind("2*H*K+HV*V", 2 * H * p.K + HV * p.V);
  shapes.bind("HV*V", HV * p.V);
  shapes.bind("HV", HV);
  shapes.bind("K", p.K);
  shapes.bind("V", p.V);
  core::check_tensor("qkv", params.qkv, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("qkv", params.qkv, "total 2*H*K+HV*V");
  core::check_tensor("out", params.out, {params.qkv.dtype}, context, Inner::kAny, Access::kWrite);
  shapes.match("out", params.out, "total HV*V");
  check_gate(p.gate, params.gate, "total HV", shapes, true, context);
  check_beta(p.beta, params.beta, "total HV", shapes, true, context);
  check_pool(p.initial, "state", params.state,
             params.layout == StateLayout::kKV ? core::Pattern("slots HV K V")
                                               : core::Pattern("slots HV V K"),
             params.layout, Inner::kAny, Access::kWrite, shapes, context);
  core::check_sequences(p.sequences, {params.cu_seqlens, params.starts, params.lengths},
                        shapes["total"], context);
  core::check_slots(p.slots,
                    {params.read_slots, params.read_columns, params.write_slots, params.first_slot,
                     p.initial.slots, p.initial.slots, "state"},
                    p.sequences.rows, context);
  p.q_heads = p.k_heads = H;
  p.heads = p.v_heads = HV;
  p.q = packed(params.qkv, 0, p.K);
  p.k = packed(params.qkv, H * p.K, p.K);
  p.v = packed(params.qkv, 2 * H * p.K, p.V);
  p.out = packed(params.out, 0, p.V);
  p.final = p.initial;
  check_options(p, params.layout, params.scale, params.l2norm, params.l2norm_eps);

  core::Overlaps overlaps;
  overlaps.writes("out", params.out);
  overlaps.writes("state", params.state);
  overlaps.reads("qkv", params.qkv);
  read_gates(overlaps, params);
  read_sequence_tensors(overlaps, params);
  read_slot_tensors(overlaps, params);
  overlaps.check();
  return p;
}

}  // namespace hyla::gdn
