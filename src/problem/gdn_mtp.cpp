#include "problem/gdn_mtp.h"

#include <algorithm>

#include "core/bounds.h"
#include "core/on_host.h"
#include "problem/gdn_rows.h"
#include "problem/overlaps.h"

namespace hyla::gdn {
namespace {

std::int64_t longest_row(const core::Sequences& sequences) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < sequences.rows; ++b) {
    longest = std::max(longest, sequences.length(b));
  }
  return longest;
}

// Room for every token of the longest row, where the host can see how long that is.
void check_columns(const char* argument, std::int64_t columns, const MtpProblem& p,
                   const Context& context) {
  std::int64_t needed = 0;
  if (!p.sequences.ragged()) {
    needed = p.sequences.tokens;
  } else if (core::on_host(context)) {
    needed = longest_row(p.sequences);
  }
  if (columns < needed) {
    core::fail(argument, "room for the " + core::text(needed) + " tokens of the longest row",
               core::text(columns));
  }
}

void check_step_slots(const MtpProblem& p) {
  for (std::int64_t b = 0; b < p.sequences.rows; ++b) {
    if (p.slots.read_slot(b) == core::kNullSlot) continue;
    for (std::int64_t t = 0; t < p.sequences.length(b); ++t) {
      const std::int64_t slot = p.step_slots.at(b, t);
      if (slot >= p.slots.first && slot >= p.final.slots) {
        core::fail("step_slots", "slots below " + core::text(p.final.slots),
                   core::text(slot) + " in row " + core::text(b));
      }
    }
  }
}

void check_commit_lengths(const MtpProblem& p) {
  for (std::int64_t b = 0; b < p.sequences.rows; ++b) {
    if (p.slots.read_slot(b) == core::kNullSlot) continue;
    const std::int64_t commit = p.commit_lengths.at(b);
    if (commit < 0 || commit > p.sequences.length(b)) {
      core::fail("commit_lengths",
                 "0 to the row's " + core::text(p.sequences.length(b)) + " tokens",
                 core::text(commit) + " in row " + core::text(b));
    }
  }
}

void check_state_options(const MtpParams& params) {
  if (!params.update_state.has_value()) {
    core::fail("update_state", "true or false, said explicitly", "nothing");
  }
  if (params.step_slots.present()) {
    core::check_absent("states_out", params.states_out, "beside step_slots");
    if (!*params.update_state) core::fail("update_state", "true with step_slots", "false");
    if (!params.write_slots.present()) {
      core::check_absent("commit_lengths", params.commit_lengths,
                         "with step_slots unless write_slots says where the final state goes");
    }
  }
  if (!*params.update_state) {
    core::check_absent("write_slots", params.write_slots, "without update_state");
    core::check_absent("commit_lengths", params.commit_lengths, "without update_state");
  }
}

}  // namespace

MtpProblem validate(const MtpParams& params, const Context& context) {
  MtpProblem p;
  core::Shapes shapes;
  const core::SequenceArguments sequences{params.cu_seqlens, params.starts, params.lengths};
  const bool ragged = core::any_given(sequences);
  check_rows(p, params, ragged ? kRagged : kUniform, shapes, context);
  if (ragged) {
    core::check_sequences(p.sequences, sequences, shapes["total"], context);
    shapes.bind("B", p.sequences.rows);
  } else {
    p.sequences.rows = shapes["B"];
    p.sequences.tokens = shapes["T"];
    core::check_row_count("q", p.sequences.rows);
  }
  check_state_options(params);
  core::check_slots(p.slots,
                    {params.read_slots, params.read_columns, params.write_slots, params.first_slot,
                     p.initial.slots, p.initial.slots, "state"},
                    p.sequences.rows, context);
  const bool host = core::on_host(context);
  p.update_state = *params.update_state;
  if (params.states_out.present()) {
    check_pool(p.states_out, "states_out", params.states_out,
               params.layout == StateLayout::kKV ? core::Pattern(">=B steps HV K V")
                                                 : core::Pattern(">=B steps HV V K"),
               params.layout, core::Inner::kContiguous, core::Access::kWrite, shapes, context);
    p.states_out_row_stride = params.states_out.strides[0];
    check_columns("states_out", p.states_out.slots, p, context);
  }
  if (params.step_slots.present()) {
    core::check_indices(p.step_slots, "step_slots", params.step_slots, "B columns", shapes,
                        context);
    check_columns("step_slots", p.step_slots.columns, p, context);
    if (host) check_step_slots(p);
    // The last step slot already holds the final state.
    p.update_state = params.write_slots.present();
  }
  if (params.commit_lengths.present()) {
    core::check_indices(p.commit_lengths, "commit_lengths", params.commit_lengths, "B", shapes,
                        context);
    if (host) check_commit_lengths(p);
  }

  core::Overlaps overlaps;
  add_row_tensors(overlaps, params);
  overlaps.writes("states_out", params.states_out);
  read_sequence_tensors(overlaps, params);
  overlaps.reads("step_slots", params.step_slots);
  overlaps.reads("commit_lengths", params.commit_lengths);
  overlaps.check();
  return p;
}

}  // namespace hyla::gdn
