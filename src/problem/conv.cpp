#include "problem/conv.h"

#include <algorithm>
#include <limits>

#include "core/bounds.h"
#include "core/check.h"
#include "core/on_host.h"
#include "problem/checkpoints.h"
#include "problem/overlaps.h"
#include "problem/tokens.h"

namespace hyla::conv {
namespace {

using core::Access;
using core::fail;
using core::Inner;
using core::Pattern;
using core::Shapes;
using core::text;

void check_weight(Problem& p, const TensorView& weight, const TensorView& bias, Shapes& shapes,
                  const Context& context) {
  core::check_tensor("weight", weight, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("weight", weight, "C W");
  p.W = shapes["W"];
  if (p.W < 2 || p.W > 4) fail("weight", "W from 2 to 4", text(p.W));
  p.weight = {weight.data, weight.dtype, weight.strides[0], weight.strides[1]};
  if (!bias.present()) return;
  core::check_tensor("bias", bias, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("bias", bias, "C");
  p.bias = {bias.data, bias.dtype, bias.strides[0]};
}

void check_activation(Problem& p, Activation activation) {
  if (activation != Activation::kNone && activation != Activation::kSilu) {
    fail("activation", "kNone or kSilu", text(static_cast<std::int64_t>(activation)));
  }
  p.activation = activation;
}

// x, weight, bias, out and the sequences. `single`: [B, C] is one token a row.
template <class Params>
void check_tokens(Problem& p, const Params& params, bool single, Shapes& shapes,
                  const Context& context) {
  core::check_context(context);
  const core::SequenceArguments sequences{params.cu_seqlens, params.starts, params.lengths};
  const bool flat = params.x.rank == 2;
  const bool ragged = core::any_given(sequences) || (flat && !single);
  const Pattern pattern = ragged ? Pattern("total C") : flat ? Pattern("B C") : Pattern("B T C");
  core::check_tensor("x", params.x, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("x", params.x, pattern);
  check_weight(p, params.weight, params.bias, shapes, context);
  core::check_tensor("out", params.out, {params.x.dtype}, context, Inner::kAny, Access::kWrite);
  shapes.match("out", params.out, pattern);
  check_activation(p, params.activation);
  p.C = shapes["C"];
  core::set_tokens(p.x, params.x, ragged, false);
  core::set_tokens(p.out, params.out, ragged, false);
  p.in_place = core::same_elements(params.x, params.out);
  if (ragged) {
    core::check_sequences(p.sequences, sequences, shapes["total"], context);
    shapes.bind("B", p.sequences.rows);
  } else {
    p.sequences.rows = shapes["B"];
    p.sequences.tokens = flat ? 1 : shapes["T"];
    core::check_row_count("x", p.sequences.rows);
  }
  shapes.bind("N", p.sequences.rows);
}

// The pool, its slots and the window offsets.
template <class Params>
void check_state(Problem& p, const Params& params, Shapes& shapes, const Context& context) {
  core::check_tensor("state", params.state, core::kFloatTypes, context, Inner::kAny,
                     Access::kWrite);
  shapes.match("state", params.state, "slots C L");
  if (shapes["L"] < p.W - 1) {
    fail("state", "at least W-1 = " + text(p.W - 1) + " columns", text(shapes["L"]));
  }
  p.state = {params.state.data,       params.state.dtype,      shapes["slots"],        shapes["L"],
             params.state.strides[0], params.state.strides[1], params.state.strides[2]};
  core::check_slots(p.slots,
                    {params.read_slots, params.read_columns, params.write_slots, params.first_slot,
                     p.state.slots, p.state.slots, "state"},
                    p.sequences.rows, context);
  if (params.window_offsets.present()) {
    core::check_indices(p.window_offsets, "window_offsets", params.window_offsets, "B", shapes,
                        context);
  }
}

void check_stateless(Problem& p, const PrefillParams& params) {
  const auto needs_pool = [](const char* argument, const TensorView& view) {
    if (view.present()) {
      fail("state", "a pool, because " + std::string(argument) + " is given", "none");
    }
  };
  needs_pool("read_slots", params.read_slots);
  needs_pool("read_columns", params.read_columns);
  needs_pool("write_slots", params.write_slots);
  needs_pool("window_offsets", params.window_offsets);
  needs_pool("has_initial_state", params.has_initial_state);
  needs_pool("checkpoint_offsets", params.checkpoint_offsets);
  needs_pool("checkpoint_slots", params.checkpoint_slots);
  if (params.first_slot < 0) fail("first_slot", "a number >= 0", text(params.first_slot));
  p.slots.read_limit = std::numeric_limits<std::int64_t>::max();
}

void check_checkpoints(PrefillProblem& p, const PrefillParams& params, Shapes& shapes,
                       const Context& context) {
  if (!params.checkpoint_offsets.present()) {
    core::check_absent("checkpoint_slots", params.checkpoint_slots, "without checkpoint_offsets");
    return;
  }
  core::check_indices(p.checkpoint_offsets, "checkpoint_offsets", params.checkpoint_offsets, "N M",
                      shapes, context);
  core::check_indices(p.checkpoint_slots, "checkpoint_slots", params.checkpoint_slots, "N M",
                      shapes, context);
  if (!core::on_host(context)) return;
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
    if (p.padding(row)) continue;
    const std::int64_t count = check_checkpoint_offsets(p.checkpoint_offsets, p.sequences, row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot = p.checkpoint_slots.at(row, i);
      if (slot >= p.slots.first && slot >= p.state.slots) {
        fail("checkpoint_slots", "slots below " + text(p.state.slots),
             text(slot) + " in row " + text(row));
      }
    }
  }
}

// The inputs of all draft tokens stay in the row, so that any number of them can be accepted.
void check_draft_columns(const UpdateProblem& p, const Context& context) {
  std::int64_t longest = 0;
  if (!p.sequences.ragged()) {
    longest = p.sequences.rows > 0 ? p.sequences.tokens : 0;
  } else if (core::on_host(context)) {
    for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
      if (!p.padding(row)) longest = std::max(longest, p.sequences.length(row));
    }
  }
  if (longest > p.state.columns - (p.W - 2)) {
    fail("state", "W-2+T columns for rows of T = " + text(longest) + " tokens with window_offsets",
         text(p.state.columns));
  }
}

void check_commit_lengths(const UpdateProblem& p) {
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
    if (p.padding(row)) continue;
    const std::int64_t commit = p.commit_lengths.at(row), length = p.sequences.length(row);
    if (commit < 0 || commit > length) {
      fail("commit_lengths", "0 to the row's " + text(length) + " tokens",
           text(commit) + " in row " + text(row));
    }
  }
}

template <class Params>
void add_tensors(core::Overlaps& overlaps, const Problem& p, const Params& params) {
  overlaps.writes("out", params.out);
  overlaps.writes("state", params.state);
  if (!p.in_place) overlaps.reads("x", params.x);
  overlaps.reads("weight", params.weight);
  overlaps.reads("bias", params.bias);
  read_sequence_tensors(overlaps, params);
  read_slot_tensors(overlaps, params);
  overlaps.reads("window_offsets", params.window_offsets);
}

}  // namespace

std::int64_t PrefillProblem::checkpoint_count(std::int64_t row) const {
  if (!checkpoint_offsets.present()) return 0;
  std::int64_t count = 0;
  while (count < checkpoint_offsets.columns && checkpoint_offsets.at(row, count) >= 0) ++count;
  return count;
}

PrefillProblem validate(const PrefillParams& params, const Context& context) {
  PrefillProblem p;
  Shapes shapes;
  check_tokens(p, params, false, shapes, context);
  if (params.state.present()) {
    check_state(p, params, shapes, context);
  } else {
    check_stateless(p, params);
  }
  if (params.has_initial_state.present()) {
    core::check_indices(p.has_initial_state, "has_initial_state", params.has_initial_state, "N",
                        shapes, context, core::kMaskTypes);
  }
  check_checkpoints(p, params, shapes, context);
  core::Overlaps overlaps;
  add_tensors(overlaps, p, params);
  overlaps.reads("has_initial_state", params.has_initial_state);
  overlaps.reads("checkpoint_offsets", params.checkpoint_offsets);
  overlaps.reads("checkpoint_slots", params.checkpoint_slots);
  overlaps.check();
  return p;
}

UpdateProblem validate(const UpdateParams& params, const Context& context) {
  UpdateProblem p;
  Shapes shapes;
  check_tokens(p, params, true, shapes, context);
  check_state(p, params, shapes, context);
  if (p.window_offsets.present()) {
    core::check_absent("commit_lengths", params.commit_lengths, "beside window_offsets");
    check_draft_columns(p, context);
  }
  if (params.commit_lengths.present()) {
    core::check_indices(p.commit_lengths, "commit_lengths", params.commit_lengths, "B", shapes,
                        context);
    if (core::on_host(context)) check_commit_lengths(p);
  }
  core::Overlaps overlaps;
  add_tensors(overlaps, p, params);
  overlaps.reads("commit_lengths", params.commit_lengths);
  overlaps.check();
  return p;
}

}  // namespace hyla::conv
