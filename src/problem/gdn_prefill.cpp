#include "problem/gdn_prefill.h"

#include <algorithm>

#include "core/bounds.h"
#include "core/on_host.h"
#include "problem/checkpoints.h"
#include "problem/gdn_checks.h"
#include "problem/overlaps.h"

namespace hyla::gdn {
namespace {

using core::fail;
using core::text;

struct HeadNames {
  const char *q, *k, *v;
};

// GVA: HV a multiple of Hq = Hk. GQA: Hq a multiple of Hk = HV.
std::int64_t check_heads(std::int64_t Hq, std::int64_t Hk, std::int64_t HV,
                         const HeadNames& names) {
  if (Hq < 1) fail(names.q, "at least one head", text(Hq));
  const bool gva = Hk == Hq && HV >= Hq && HV % Hq == 0;
  const bool gqa = Hk == HV && Hk >= 1 && Hq % Hk == 0;
  if (!gva && !gqa) {
    fail(Hk == Hq ? names.v : names.k,
         "heads with v a multiple of q = k (GVA) or q a multiple of k = v (GQA)",
         "q " + text(Hq) + ", k " + text(Hk) + ", v " + text(HV));
  }
  core::check_head_count(Hq > HV ? names.q : names.v, std::max(Hq, HV));
  return std::max(Hq, HV);
}

core::Pattern pool_pattern(StateLayout layout) {
  return layout == StateLayout::kKV ? core::Pattern("slots Hs K V") : core::Pattern("slots Hs V K");
}

void check_states(PrefillProblem& p, const PrefillParams& params, core::Shapes& shapes,
                  const Context& context) {
  using core::Access;
  using core::Inner;
  using core::kNoLimit;
  if (params.state.present()) {
    const Access access = params.state_out.present() ? Access::kRead : Access::kWrite;
    check_pool(p.initial, "state", params.state, pool_pattern(params.layout), params.layout,
               Inner::kContiguous, access, shapes, context);
  }
  p.final = p.initial;
  if (params.state_out.present()) {
    check_pool(p.final, "state_out", params.state_out,
               params.layout == StateLayout::kKV ? core::Pattern("out_slots Hs K V")
                                                 : core::Pattern("out_slots Hs V K"),
               params.layout, Inner::kContiguous, Access::kWrite, shapes, context);
  }
  if (!p.final.present()) core::check_absent("write_slots", params.write_slots, "without a pool");
  if (!params.update_state) {
    core::check_absent("write_slots", params.write_slots, "without update_state");
  }
  const std::int64_t rows = p.sequences.rows;
  if (!params.read_slots.present() && !params.write_slots.present() && params.state_out.present() &&
      rows > p.final.slots) {
    fail("state_out", "at least " + text(rows) + " slots, one a row, without write_slots",
         text(p.final.slots));
  }
  core::check_slots(p.slots,
                    {params.read_slots, params.read_columns, params.write_slots, params.first_slot,
                     p.initial.present() ? p.initial.slots : kNoLimit,
                     p.final.present() ? p.final.slots : kNoLimit, "state"},
                    rows, context);
  if (params.has_initial_state.present()) {
    if (!params.state.present())
      fail("state", "a pool, because has_initial_state is given", "none");
    shapes.bind("N", rows);
    core::check_indices(p.has_initial_state, "has_initial_state", params.has_initial_state, "N",
                        shapes, context, core::kMaskTypes);
  }
}

// Which tokens are checkpoints and where they go, on the host. Nothing of a padding row is looked
// at.
void check_checkpoint_rows(const PrefillProblem& p) {
  for (std::int64_t n = 0; n < p.sequences.rows; ++n) {
    if (p.slots.read_slot(n) == core::kNullSlot) continue;
    const std::int64_t count = p.checkpoint_offsets.present()
                                   ? check_checkpoint_offsets(p.checkpoint_offsets, p.sequences, n)
                                   : p.checkpoint_count(n);
    if (p.checkpoints.present()) {
      const std::int64_t begin = p.checkpoint_starts.at(n), end = p.checkpoint_starts.at(n + 1);
      if (begin < 0 || end > p.checkpoints.slots || end - begin != count) {
        fail("checkpoint_starts",
             "room for the " + text(count) + " checkpoints of row " + text(n) + " among the " +
                 text(p.checkpoints.slots) + " given",
             text(begin) + " to " + text(end));
      }
      continue;
    }
    if (count > p.checkpoint_slots.columns) {
      fail("checkpoint_slots", "room for the " + text(count) + " checkpoints of row " + text(n),
           text(p.checkpoint_slots.columns) + " columns");
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot = p.checkpoint_slots.at(n, i);
      if (slot >= p.slots.first && slot >= p.final.slots) {
        fail("checkpoint_slots", "slots below " + text(p.final.slots),
             text(slot) + " in row " + text(n));
      }
    }
  }
}

void check_checkpoints(PrefillProblem& p, const PrefillParams& params, core::Shapes& shapes,
                       const Context& context) {
  const bool every = params.checkpoint_every != 0, listed = params.checkpoint_offsets.present();
  if (params.checkpoint_every < 0 || params.checkpoint_every % kCheckpointGranule != 0) {
    fail("checkpoint_every", "a multiple of 64, or 0 for none", text(params.checkpoint_every));
  }
  if (!every && !listed) {
    const char* reason = "without checkpoint_every or checkpoint_offsets";
    core::check_absent("checkpoints", params.checkpoints, reason);
    core::check_absent("checkpoint_starts", params.checkpoint_starts, reason);
    core::check_absent("checkpoint_slots", params.checkpoint_slots, reason);
    return;
  }
  if (every && listed) fail("checkpoint_offsets", "none beside checkpoint_every", "both");
  p.checkpoint_every = params.checkpoint_every;
  core::Shapes columns;
  columns.bind("N", p.sequences.rows);
  if (listed) {
    core::check_indices(p.checkpoint_offsets, "checkpoint_offsets", params.checkpoint_offsets,
                        "N C", columns, context);
  }
  if (params.checkpoint_slots.present()) {
    core::check_absent("checkpoints", params.checkpoints, "beside checkpoint_slots");
    core::check_absent("checkpoint_starts", params.checkpoint_starts, "beside checkpoint_slots");
    if (!p.final.present()) fail("state", "a pool for checkpoint_slots", "none");
    core::check_indices(p.checkpoint_slots, "checkpoint_slots", params.checkpoint_slots, "N C",
                        columns, context);
  } else {
    check_pool(p.checkpoints, "checkpoints", params.checkpoints,
               params.layout == StateLayout::kKV ? core::Pattern("checkpoints Hs K V")
                                                 : core::Pattern("checkpoints Hs V K"),
               params.layout, core::Inner::kContiguous, core::Access::kWrite, shapes, context);
    core::check_indices(p.checkpoint_starts, "checkpoint_starts", params.checkpoint_starts, "N+1",
                        columns, context);
  }
  if (core::on_host(context)) check_checkpoint_rows(p);
}

// Lengths that cannot be: those below 0. Those that are wrong only cost time.
void check_host_lengths(PrefillProblem& p, const TensorView& lengths) {
  if (!lengths.present()) return;
  core::Shapes shapes;
  shapes.bind("N", p.sequences.rows);
  core::check_indices(p.host_lengths, "host_lengths", lengths, "N", shapes, Context{});
  p.max_length = 1;  // 0 would mean that it is not known
  for (std::int64_t n = 0; n < p.sequences.rows; ++n) {
    const std::int64_t length = p.host_lengths.at(n);
    if (length < 0) {
      fail("host_lengths", "numbers >= 0", text(length) + " in row " + text(n));
    }
    p.max_length = std::max(p.max_length, std::min(length, p.sequences.tokens));
    // Fibonacci hashing of a running value: every length changes half of the bits.
    p.lengths_key = (p.lengths_key ^ static_cast<std::uint64_t>(length)) * 0x9e3779b97f4a7c15u;
    p.lengths_key ^= p.lengths_key >> 32;
  }
}

void check_no_overlap(const PrefillParams& params) {
  core::Overlaps overlaps;
  overlaps.writes("out", params.out);
  if (params.state_out.present()) {
    overlaps.writes("state_out", params.state_out);
    overlaps.reads("state", params.state);
  } else {
    overlaps.writes("state", params.state);
  }
  overlaps.writes("checkpoints", params.checkpoints);
  overlaps.reads("q", params.q);
  overlaps.reads("k", params.k);
  overlaps.reads("v", params.v);
  read_gates(overlaps, params);
  read_sequence_tensors(overlaps, params);
  read_slot_tensors(overlaps, params);
  overlaps.reads("host_lengths", params.host_lengths);
  overlaps.reads("has_initial_state", params.has_initial_state);
  overlaps.reads("checkpoint_offsets", params.checkpoint_offsets);
  overlaps.reads("checkpoint_starts", params.checkpoint_starts);
  overlaps.reads("checkpoint_slots", params.checkpoint_slots);
  overlaps.check();
}

}  // namespace

std::int64_t PrefillProblem::checkpoint_count(std::int64_t row) const {
  if (checkpoint_every > 0) return sequences.length(row) / checkpoint_every;
  if (!checkpoint_offsets.present()) return 0;
  std::int64_t count = 0;
  while (count < checkpoint_offsets.columns && checkpoint_offsets.at(row, count) >= 0) ++count;
  return count;
}

PrefillProblem validate(const PrefillParams& params, const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  PrefillProblem p;
  core::Shapes shapes;
  core::check_tensor("q", params.q, core::kFloatTypes, context, Inner::kContiguous, Access::kRead);
  shapes.match("q", params.q, "total Hq K");
  core::check_tensor("k", params.k, {params.q.dtype}, context, Inner::kContiguous, Access::kRead);
  shapes.match("k", params.k, "total Hk K");
  core::check_tensor("v", params.v, {params.q.dtype}, context, Inner::kContiguous, Access::kRead);
  shapes.match("v", params.v, "total HV V");
  core::check_head_dim("q", shapes["K"], "K");
  core::check_head_dim("v", shapes["V"], "V");
  p.q_heads = shapes["Hq"];
  p.k_heads = shapes["Hk"];
  p.v_heads = shapes["HV"];
  p.heads = check_heads(p.q_heads, p.k_heads, p.v_heads, {"q", "k", "v"});
  shapes.bind("Hs", p.heads);
  core::check_tensor("out", params.out, {params.q.dtype}, context, Inner::kContiguous,
                     Access::kWrite);
  shapes.match("out", params.out, "total Hs V");
  check_gate(p.gate, params.gate, "total Hs", shapes, true, context);
  check_beta(p.beta, params.beta, "total Hs", shapes, true, context);
  core::check_sequences(p.sequences, {params.cu_seqlens, params.starts, params.lengths},
                        shapes["total"], context);
  if (params.max_length < 0) fail("max_length", "a number >= 0", text(params.max_length));
  p.max_length = params.max_length;
  check_host_lengths(p, params.host_lengths);
  check_states(p, params, shapes, context);
  check_checkpoints(p, params, shapes, context);
  if (!params.update_state) p.slots.write_limit = 0;  // every write slot is null

  p.K = shapes["K"];
  p.V = shapes["V"];
  set_tokens(p.q, params.q, true, true);
  set_tokens(p.k, params.k, true, true);
  set_tokens(p.v, params.v, true, true);
  set_tokens(p.out, params.out, true, true);
  check_options(p, params.layout, params.scale, params.l2norm, params.l2norm_eps);
  if (params.decay_cutoff_log2.has_value()) {
    core::check_positive("decay_cutoff_log2", *params.decay_cutoff_log2);
    p.decay_cutoff_log2 = *params.decay_cutoff_log2;
  }
  check_no_overlap(params);
  return p;
}

void check_bounds(const PrefillBounds& bounds) {
  core::check_range("max_sequences", bounds.max_sequences, 0, core::kMostRows);
  core::check_range("max_tokens", bounds.max_tokens, 0, core::kMostTokens);
  core::check_range("query_heads", bounds.query_heads, 1, core::kMostHeads);
  core::check_range("key_heads", bounds.key_heads, 1, core::kMostHeads);
  core::check_range("value_heads", bounds.value_heads, 1, core::kMostHeads);
  check_heads(bounds.query_heads, bounds.key_heads, bounds.value_heads,
              {"query_heads", "key_heads", "value_heads"});
  core::check_head_dim("key_dim", bounds.key_dim, "K");
  core::check_head_dim("value_dim", bounds.value_dim, "V");
  const bool io =
      bounds.io == DType::kFloat32 || bounds.io == DType::kBFloat16 || bounds.io == DType::kFloat16;
  if (bounds.device.index < 0) {
    fail("device", "a number >= 0", text(std::int64_t{bounds.device.index}));
  }
  if (!io) fail("io", "dtype float32 or bfloat16 or float16", name_of(bounds.io));
}

}  // namespace hyla::gdn
