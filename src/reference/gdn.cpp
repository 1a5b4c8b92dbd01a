#include "reference/gdn.h"

#include "reference/gdn_head.h"

namespace hyla::reference {
namespace {

// The final state goes to the row's write slot, if it has one.
void store_final(const gdn::Problem& p, std::int64_t row, std::int64_t head, const State& S) {
  const std::int64_t slot = p.slots.write_slot(row);
  if (slot != core::kNullSlot) store_state(p, p.final, slot, head, S);
}

// Decode and recurrence: walk the row's tokens and keep the last state.
void run_rows(const gdn::Problem& p) {
  for_each_head(p, [&](std::int64_t row, std::int64_t head, std::int64_t slot) {
    run_head(p, row, head, load_state(p, p.initial, slot, head),
             [&](std::int64_t tokens, const State& S) {
               if (tokens == p.sequences.length(row)) store_final(p, row, head, S);
             });
  });
}

}  // namespace

void decode(const gdn::DecodeProblem& p, const Workspace&, const Context&) { run_rows(p); }

void recurrence(const gdn::RecurrenceProblem& p, const Workspace&, const Context&) { run_rows(p); }

void mtp(const gdn::MtpProblem& p, const Workspace&, const Context&) {
  for_each_head(p, [&](std::int64_t row, std::int64_t head, std::int64_t slot) {
    const std::int64_t commit =
        p.commit_lengths.present() ? p.commit_lengths.at(row) : p.sequences.length(row);
    run_head(p, row, head, load_state(p, p.initial, slot, head),
             [&](std::int64_t tokens, const State& S) {
               if (tokens > 0 && p.states_out.present()) {
                 gdn::PoolView steps = p.states_out;
                 const std::int64_t bytes = row * p.states_out_row_stride *
                                            static_cast<std::int64_t>(size_of(steps.dtype));
                 steps.data = static_cast<char*>(steps.data) + bytes;
                 store_state(p, steps, tokens - 1, head, S);
               }
               if (tokens > 0 && p.step_slots.present()) {
                 const std::int64_t step =
                     p.slots.checked(p.step_slots.at(row, tokens - 1), p.final.slots);
                 if (step != core::kNullSlot) store_state(p, p.final, step, head, S);
               }
               if (tokens == commit && p.update_state) store_final(p, row, head, S);
             });
  });
}

void prefill(const gdn::PrefillProblem& p, const Workspace&, const Context&) {
  for_each_head(p, [&](std::int64_t row, std::int64_t head, std::int64_t slot) {
    const gdn::PoolView start = p.starts_from_pool(row) ? p.initial : gdn::PoolView{};
    const std::int64_t count = p.checkpoint_count(row);
    std::int64_t next = 0;  // checkpoint
    run_head(p, row, head, load_state(p, start, slot, head),
             [&](std::int64_t tokens, const State& S) {
               if (next < count && tokens == p.checkpoint_offset(row, next)) {
                 if (p.checkpoints.present()) {
                   store_state(p, p.checkpoints, p.checkpoint_starts.at(row) + next, head, S);
                 } else {
                   const std::int64_t to =
                       p.slots.checked(p.checkpoint_slots.at(row, next), p.final.slots);
                   if (to != core::kNullSlot) store_state(p, p.final, to, head, S);
                 }
                 ++next;
               }
               if (tokens == p.sequences.length(row) && p.final.present()) {
                 store_final(p, row, head, S);
               }
             });
  });
}

}  // namespace hyla::reference
