// What the cost model looks at of a problem.
#pragma once

#include "device/launch.h"
#include "ops/gdn_prefill/plan.h"
#include "ops/gdn_prefill/record.cuh"

namespace hyla::gdn {

inline int value_blocks(const PrefillProblem& p) { return static_cast<int>((p.V + 63) / 64); }

// Of the call that this thread is in: sorted once, asked for by every plan, and by the layers of a
// model with the same lengths.
inline const PlanLengths* told_lengths(const PrefillProblem& p) {
  if (!p.host_lengths.present()) return nullptr;
  thread_local std::optional<PlanLengths> last;
  const std::int64_t rows = p.sequences.rows, tokens = p.sequences.tokens;
  if (!last.has_value() || !last->is_of(p.lengths_key, rows, tokens)) {
    last.emplace(p.lengths_key, rows, tokens, [&](std::int64_t n) { return p.host_lengths.at(n); });
  }
  return &*last;
}

// The same from the longest alone, kept like those.
inline const PlanLengths* assumed_lengths(const PlanShape& s, std::uint64_t key) {
  thread_local std::optional<PlanLengths> last;
  if (!last.has_value() || !last->is_of(key, s.rows, s.tokens)) {
    const AssumedLengths assumed(s.rows, static_cast<double>(s.tokens),
                                 static_cast<double>(s.length()));
    last.emplace(key, s.rows, s.tokens, [&](std::int64_t row) {
      return std::llround(assumed.of(assumed.rank_in_order(row)));
    });
  }
  return &*last;
}

// Whether final states take the place of initial ones: pools that overlap otherwise are refused.
inline bool states_in_place(const PrefillProblem& p) {
  return p.initial.present() && p.final.present() && p.initial.data == p.final.data;
}

inline PlanShape plan_shape(const PrefillProblem& p, const Context& context) {
  PlanShape s{p.sequences.rows, p.heads, p.sequences.tokens, device::multiprocessors(context),
              value_blocks(p)};
  const double keys = static_cast<double>(p.q_heads + p.k_heads) / static_cast<double>(p.heads);
  constexpr double kColumn = 2.0 * kChunk;
  s.key_bytes = kColumn * keys * static_cast<double>(p.K) + static_cast<double>(kRecordBytes);
  s.key_loads = kColumn * 2.0 * static_cast<double>(p.K) + static_cast<double>(kRecordBytes);
  const double values = 1.0 + static_cast<double>(p.v_heads) / static_cast<double>(p.heads);
  s.value_bytes = kColumn * values * static_cast<double>(p.V);
  s.longest = p.max_length;
  s.lengths = {told_lengths(p), p.lengths_key};
  if (s.lengths.all == nullptr && s.longest > 0 && s.rows <= kMostRankedLengths && !s.even(1)) {
    const auto key = static_cast<std::uint64_t>(s.longest);
    s.lengths = {assumed_lengths(s, key), key, true};
  }
  s.key_dim = p.K;
  s.norm = p.l2norm;
  s.narrow_states = p.initial.present() ? size_of(p.initial.dtype) < 4
                                        : p.final.present() && size_of(p.final.dtype) < 4;
  s.reads_states = p.initial.present();
  s.in_place = states_in_place(p);
  s.pairs = !context.batch_invariant;
  return s;
}

}  // namespace hyla::gdn
