// The cost model of cuda_split, and the parts of it that other plans share.
#pragma once

#include "ops/gdn_prefill/plan_batch.h"
#include "ops/gdn_prefill/walks.h"

namespace hyla::gdn {

// T', P and factors of all chunks `on` some multiprocessors, four warpgroups each: the first chunk
// is a latency, and the more there are the better they fill each other's gaps.
inline double prepare_us(const PlanShape& s, double on) {
  const double each =
      (s.wide() ? 2.86 : 1.67) * (s.norm ? 1.29 : 1.0) * (1.0 + 0.0256 * (s.keys_a_head() - 1.0));
  const double chunks = s.head_chunks();
  // Short keys are never bound by it.
  const double bytes_per_us = s.wide() ? 3.01e6 : s.key_dim == 128 ? 2.9e6 : 1.54e7;
  return limit_us(each * std::pow(std::max(1.0, chunks / on), 0.954),
                  chunks * s.key_bytes / bytes_per_us);
}

// Whether so few chunks are prepared that the CTAs of the next kernel start beside, on
// multiprocessors of their own: where the others' larger share costs less than that saves. The
// launch asks for it, too, so this is not part of a fit of the times.
inline bool prepares_beside(const PlanShape& s, double ctas) {
  const double left = s.multiprocessors - ctas;
  const double chunks = s.head_chunks();
  if (left < 1 || chunks > 4 * left) return false;
  const double each =
      (s.wide() ? 2.36 : 3.37) * (s.norm ? 1.23 : 1.0) * (1.0 + 0.107 * (s.keys_a_head() - 1.0));
  const auto share = [&](double on) { return std::pow(std::max(1.0, chunks / on), 0.794); };
  return each * (share(left) - share(s.multiprocessors)) < 2.5;
}
inline constexpr double kBesideUs = 1.84;  // what it saves

// `ctas` of one or two blocks walk over chunks with outputs, the busiest multiprocessor over
// `chunks`; no faster than the memory.
inline double serial_us(const PlanShape& s, double ctas, double chunks, int blocks_a_cta) {
  const double chunk = s.wide()            ? (blocks_a_cta == 2 ? 2.48 : 1.52)
                       : blocks_a_cta == 2 ? 1.39
                                           : 0.98;
  // All of it once, and what blocks of value rows read again through L2. Few CTAs do not ask for
  // more than the memory has.
  const double all = s.head_chunks();
  constexpr double kBytesPerUs = 4.27e6, kCachedBytesPerUs = 6.66e6;
  const double memory = all * (s.key_bytes + s.value_bytes) / kBytesPerUs;
  const double cached =
      all * (s.key_bytes * s.blocks / blocks_a_cta + s.value_bytes) / kCachedBytesPerUs;
  const double busy = std::min(1.0, ctas / s.multiprocessors);
  return limit_us(chunks * chunk, std::max(memory, cached) * busy);
}

// The same of sequences that differ, where it is known when each of the CTAs starts: those that have
// ended leave the memory to the others.
inline double serial_of_starts_us(const PlanShape& s, double ctas, int blocks_a_cta) {
  const double chunk = s.wide()            ? (blocks_a_cta == 2 ? 2.63 : 1.39)
                       : blocks_a_cta == 2 ? 1.29
                                           : 0.96;
  const double blocks = static_cast<double>(s.blocks) / blocks_a_cta;
  const double memory = (s.key_bytes + s.value_bytes) / blocks / 5.04e6;
  const double cached = (s.key_loads + s.value_bytes / blocks) / 9.66e6;
  const bool by_rank = ctas <= s.multiprocessors || s.starts_by_rank(ctas);
  return s.walked_us(ctas, by_rank,
                     [&](double busy) { return limit_us(chunk, busy * std::max(memory, cached)); });
}

// What is walked over in one part, or in two of which the second catches up without outputs, in 3/4
// of the time.
inline double split_walk_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const double ctas = static_cast<double>(s.tasks()) * s.blocks * parts / blocks_a_cta;
  if (parts == 1 && !s.even() && s.starts_are_known(ctas)) {
    return serial_of_starts_us(s, ctas, blocks_a_cta);
  }
  const double walk = s.busiest(ctas, s.chunks(), s.all_chunks() / s.row_count());
  return serial_us(s, ctas, parts == 2 ? 0.757 * walk : walk, blocks_a_cta);
}

// CTAs of the walk.
inline double split_ctas(const PlanShape& s, const Walks& w) {
  return static_cast<double>(s.tasks()) * s.blocks * w.parts / w.blocks_a_cta;
}

// May chunks be handed over, prepared by the multiprocessors that the walk leaves free
// (handover.cuh)? Short walks end before that pays.
inline constexpr double kLeastBesideChunks = 8;
inline bool may_prepare_beside(const PlanShape& s, const Walks& w) {
  return s.multiprocessors - split_ctas(s, w) >= 1 && !s.wide() && s.rows <= 128 &&
         s.chunks() >= kLeastBesideChunks;
}
inline double walked_beside_us(const PlanShape& s, const Walks& w, PlanTerms& terms) {
  const bool two_parts = w.parts == 2;
  const double left = s.multiprocessors - split_ctas(s, w);
  // Fewer multiprocessors prepare a little faster each, down to what a chunk takes one of them.
  const double all = (two_parts ? 1.63 : 1.33) * prepare_us(s, s.multiprocessors);
  const double chunks = s.head_chunks() / left;
  const double rest =
      std::max(all * std::pow(s.multiprocessors / left, 0.123), (s.norm ? 1.59 : 1.28) * chunks);
  // The walk is slower than alone, as memory is busy, the more so the more of them there are.
  const double load = std::min(0.5, split_ctas(s, w) / s.multiprocessors);
  const double busy = (1.01 + 0.062 * load) * (1.0 + 0.032 * (s.keys_a_head() - 1.0));
  const double walked = busy * split_walk_us(s, w.parts, w.blocks_a_cta);
  const double start = two_parts ? 0.0 : 0.527;
  terms[0] = walked, terms[1] = rest;
  if (s.even() || !s.lengths.ranked()) return start + limit_us(walked, rest);
  // Chunks are prepared in rounds, one of every sequence that is still there: the first rounds have
  // more of them, and long walks wait for these. Not all CTAs have equally many.
  const double step = walked / s.chunks(), each = 1.14 * rest / s.all_chunks();
  double us = start;
  for (int rank = 0; rank < s.rows; ++rank) {
    const int rounds = s.lengths.all->chunks(rank) - s.lengths.all->chunks(rank + 1);
    if (rounds > 0) us += rounds * limit_us(step, each * (rank + 1));
  }
  return us;
}

// What it costs that parts take their states in place in the order in which they start
// (start_order.cuh).
inline double order_us(const PlanShape& s, int parts) {
  return s.in_place && parts > 1 ? 0.34 : 0.0;
}

// What of a call with its records L2 has no room for, up to 1.
inline double records_beyond_cache(const PlanShape& s) {
  const double chunks = s.head_chunks();
  const double beyond = (s.call_bytes() + chunks * s.record_bytes() - 9.12e6) / 1.08e8;
  return std::clamp(beyond, 0.0, 1.0);
}

inline double split_at_us(const PlanShape& s, const Walks& w, PlanTerms& terms) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = split_ctas(s, w);
  const double us = 11.4 + 5.89 * records_beyond_cache(s) + order_us(s, w.parts) +
                    (s.narrow_states ? (s.wide() ? 0.136 + 3.08 * s.waves(ctas) : 0.927) : 0.0) +
                    (s.wide() ? 4.8 + (s.waves(ctas) > 1 ? 0.134 : 0.0999) * tasks
                              : 0.000155 * tasks * s.blocks * static_cast<double>(s.key_dim)) +
                    (s.wide() ? 4.53 : 3.7) * (s.waves(ctas) - 1);
  terms = {0.0, 0.0, us, records_beyond_cache(s), 0.0};
  if (w.beside) return us + walked_beside_us(s, w, terms);
  const bool first = prepares_beside(s, ctas);
  terms[0] = split_walk_us(s, w.parts, w.blocks_a_cta);
  terms[1] = prepare_us(s, first ? s.multiprocessors - ctas : s.multiprocessors);
  terms[4] = first ? 1.0 : 0.0;
  return us + terms[0] + terms[1] - (first ? kBesideUs : 0.0);
}

// Every form that cuda_split has for a shape.
template <class Take>
void each_split_form(const PlanShape& s, const Take& take) {
  const double ctas = split_ctas(s, {.parts = 1});
  const auto both = [&](Walks w) {
    take(w);
    w.beside = true;
    if (may_prepare_beside(s, w)) take(w);
  };
  both({.parts = 1});
  if (2 * ctas <= s.multiprocessors && s.chunks() > 4) both({.parts = 2});
  if (s.blocks % 2 == 0 && (!s.wide() || (s.pairs && s.waves(ctas) > 1))) {
    both({.parts = 1, .blocks_a_cta = 2});
  }
}

}  // namespace hyla::gdn
