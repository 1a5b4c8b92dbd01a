// The cost model of cuda_fused, with the sequences that it leaves to others.
#pragma once

#include "ops/gdn_prefill/long_plan.h"
#include "ops/gdn_prefill/plan_split.h"

namespace hyla::gdn {

// What the device will find (long_rows.cuh) if the sequence of a rank has `length(rank)` chunks: how
// many of up to `most` sequences are taken out, none if that does not pay.
struct LongChoice {
  int count = 0, parts = 1, prepared = 0;
  std::int64_t cost = LongPlan::kImpossible;
};
template <class Length>
LongChoice long_choice(const LongPlan& plan, int most, const Length& length) {
  LongChoice best;
  for (int parts = 1; parts <= plan.most_parts; ++parts) {
    for (int count = 1, prepared = 0; count <= most; ++count) {
      prepared += length(count - 1);
      if (count < plan.rows && length(count) == length(count - 1)) continue;
      const std::int64_t cost = plan.cost(count, prepared, length(0), length(count), parts);
      if (cost < best.cost) best = {count, parts, prepared, cost};
    }
  }
  return LongPlan::pays(best.cost, plan.cost(0, 0, length(0), 0, 1)) ? best : LongChoice{};
}
inline LongChoice long_choice(LongPlan plan, int most, const PlanLengths& lengths) {
  plan.rows = lengths.rows();
  plan.chunks = static_cast<int>(std::min(lengths.pieces(64), 1e9));
  return long_choice(plan, most, [&](int rank) { return lengths.chunks(rank); });
}

// Everything in one CTA; a task costs its states, and more of them beside each other memory's time.
inline double fused_chunk_us(const PlanShape& s, double busy) {
  return (s.norm ? 2.3 : 2.1) * (1 + 0.114 * busy) + 0.128 * busy * (s.keys_a_head() - 1.0);
}
inline double fused_task_us(const PlanShape& s, double busy) {
  return 4.31 + (s.narrow_states ? 2.06 : 0.848 * busy) + (s.norm ? 0.679 : 0.0) +
         (0.663 * s.last_part() - (s.reads_states ? 0.0 : 2.6)) * busy;
}

// The chosen sequences are prepared and walked over, the others share what is left. If none is
// left, that is what cuda_split does, and the look.
inline double long_us(const PlanShape& s, const LongPlan& plan, const LongChoice& longs,
                      PlanTerms& terms) {
  if (longs.count >= s.rows) return 16.6 + split_at_us(s, {longs.parts, plan.blocks_a_cta}, terms);
  const double chunks = static_cast<double>(longs.prepared * s.heads);
  const double prepare =
      (s.norm ? 5.08 : 6.76) * std::pow(std::max(1.0, chunks / s.multiprocessors), 0.662);
  const int ctas = longs.count * plan.ctas_a_row(longs.parts);
  const double walk = plan.blocks_a_cta == 2 ? 1.5 : longs.parts == 2 ? 0.732 : 1.0;
  const double loads = (s.key_loads * 2 / plan.blocks_a_cta + s.value_bytes) * chunks / 3.62e6;
  const double busy = static_cast<double>(ctas) / s.multiprocessors;
  const double walks =
      limit_us(walk * static_cast<double>(s.lengths.all->chunks(0)), loads * std::pow(busy, 1.11));
  const double others = s.dealt_out(fused_chunk_us(s, 1.0), fused_task_us(s, 1.0),
                                    s.multiprocessors - ctas, longs.count);
  terms = {prepare, walks, others, static_cast<double>(longs.count),
           static_cast<double>(longs.parts)};
  return 21.9 + 0.053 * s.row_count() + prepare + std::max(walks, others);
}

// Tasks dealt out by lengths that the host knows: a CTA that has more than others has the memory for
// itself at the end, and last chunks come one after another.
inline double fused_dealt_us(const PlanShape& s, double busy) {
  const double chunk =
      (s.norm ? 2.15 : 2.01) - 0.287 * busy + 0.0798 * busy * (s.keys_a_head() - 1.0);
  const double task = 6.24 + (s.norm ? 0.295 : 0.0) + (s.narrow_states ? 0.932 : 0.0);
  const double mean = s.head_chunks() / s.multiprocessors;
  return 0.795 * mean + s.dealt_out(chunk, task, s.multiprocessors);
}

inline double fused_at_us(const PlanShape& s, PlanTerms& terms) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count(), waves = std::max(1.0, s.waves(tasks));
  const double busy = tasks / (s.multiprocessors * waves);
  const double chunk = fused_chunk_us(s, busy), task = fused_task_us(s, busy);
  const double one = s.chunks() * chunk + task, each = s.all_chunks() / rows;
  const double shared = (each * chunk + task) * tasks / s.multiprocessors;
  const double tail = tasks > s.multiprocessors ? 0.35 * each * chunk : 0;
  // A last chunk that is not whole has other code, which has to be fetched.
  const double code =
      (0.661 + 1.7 * busy * std::min(waves, 6.0)) * std::clamp(each - 1.0, 0.0, 2.0);
  const bool dealt = !s.even() && s.deals_out();
  const double start = dealt ? 3.58 + 0.0184 * rows + 5.28 * busy + 3.07 * s.beyond_cache()
                             : 4.51 + 0.0318 * rows + 3.15 * busy + 7.45 * s.beyond_cache();
  const double ends = (dealt ? 0.504 : 1.0) * code * s.torn();
  const double walks = dealt      ? fused_dealt_us(s, busy)
                       : s.even() ? waves * one
                                  : std::max(one, shared + tail);
  terms = {start, walks, ends, 0.0, 0.0};
  const double us = start + ends + walks;
  LongPlan plan;
  const int most = long_rows(plan, s.rows, s.heads, s.tokens, s.told(), s.multiprocessors);
  if (most == 0) return us;
  constexpr double kLook = 7.84;
  if (s.deals_out()) {
    const LongChoice longs = long_choice(plan, most, *s.lengths.all);
    if (longs.count > 0) return long_us(s, plan, longs, terms);
    return us + (s.lengths.assumed ? kLook : 0.0);
  }
  if (s.even()) {
    const auto chunks = static_cast<int>(s.chunks());
    const LongChoice longs =
        long_choice(plan, most, [&](int rank) { return rank < s.rows ? chunks : 0; });
    return longs.count > 0 ? long_us(s, plan, longs, terms) : kLook + us;
  }
  const AssumedLengths assumed(s.rows, s.all_chunks(), s.chunks());
  const LongChoice longs = long_choice(plan, most, [&](int rank) {
    return rank < s.rows ? static_cast<int>(std::lround(assumed.of(rank))) : 0;
  });
  return kLook + (longs.count > 0 ? 17.4 + 0.00941 * static_cast<double>(longs.cost) : us);
}

}  // namespace hyla::gdn
