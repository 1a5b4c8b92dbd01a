// Which kernels are expected to be fastest: a cost model in microseconds, fitted to what random
// shapes took on an H200 (`hyla bench --plans`), with what the host knows of a batch: sequences,
// heads, tokens in all and, if the caller said so, of the longest sequence or of all. Gates are on
// the device, so a quarter of the heads is taken not to forget.
#pragma once

#include "ops/gdn_prefill/long_plan.h"
#include "ops/gdn_prefill/plan_batch.h"
#include "ops/gdn_prefill/plan_short.h"
#include "ops/gdn_prefill/walk_shares.h"
#include "ops/gdn_prefill/walks.h"

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

inline double split_at_us(const PlanShape& s, const Walks& w);

// The chosen sequences are prepared and walked over, the others share what is left. If none is
// left, that is what cuda_split does, and the look.
inline double long_us(const PlanShape& s, const LongPlan& plan, const LongChoice& longs) {
  if (longs.count >= s.rows) return 16.6 + split_at_us(s, {longs.parts, plan.blocks_a_cta});
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
  return 21.9 + 0.053 * s.row_count() + prepare + std::max(walks, others);
}

// Tasks dealt out by lengths that the host knows: a CTA that has more than others has the memory for
// itself at the end, and last chunks come one after another.
inline double fused_dealt_us(const PlanShape& s, double busy) {
  const double chunk =
      (s.norm ? 2.15 : 2.01) - 0.287 * busy + 0.0798 * busy * (s.keys_a_head() - 1.0);
  const double task = 6.24 + (s.norm ? 0.295 : 0.0) + (s.narrow_states ? 0.932 : 0.0);
  const double mean = s.all_chunks() * static_cast<double>(s.heads) / s.multiprocessors;
  return 0.795 * mean + s.dealt_out(chunk, task, s.multiprocessors);
}

inline double fused_at_us(const PlanShape& s) {
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
  const double us = start + (dealt ? 0.504 : 1.0) * code * s.torn() +
                    (dealt      ? fused_dealt_us(s, busy)
                     : s.even() ? waves * one
                                : std::max(one, shared + tail));
  LongPlan plan;
  const int most = long_rows(plan, s.rows, s.heads, s.tokens, s.told(), s.multiprocessors);
  if (most == 0) return us;
  constexpr double kLook = 7.84;
  if (s.deals_out()) {
    const LongChoice longs = long_choice(plan, most, *s.lengths.all);
    if (longs.count > 0) return long_us(s, plan, longs);
    return us + (s.lengths.assumed ? kLook : 0.0);
  }
  if (s.even()) {
    const auto chunks = static_cast<int>(s.chunks());
    const LongChoice longs =
        long_choice(plan, most, [&](int rank) { return rank < s.rows ? chunks : 0; });
    return longs.count > 0 ? long_us(s, plan, longs) : kLook + us;
  }
  const AssumedLengths assumed(s.rows, s.all_chunks(), s.chunks());
  const LongChoice longs = long_choice(plan, most, [&](int rank) {
    return rank < s.rows ? static_cast<int>(std::lround(assumed.of(rank))) : 0;
  });
  return kLook + (longs.count > 0 ? 17.4 + 0.00941 * static_cast<double>(longs.cost) : us);
}

// With what is known of the lengths.
template <double (*AtUs)(const PlanShape&)>
double us_over_lengths(const PlanShape& s) {
  return over_lengths(s, AtUs);
}
inline double fused_us(const PlanShape& s) { return remembered<us_over_lengths<fused_at_us>>(s); }
inline double block_us(const PlanShape& s) { return remembered<us_over_lengths<block_at_us>>(s); }
inline double steps_us(const PlanShape& s) { return remembered<us_over_lengths<steps_at_us>>(s); }
inline double vk_us(const PlanShape& s) { return remembered<us_over_lengths<vk_at_us>>(s); }

// T', P and factors of all chunks `on` some multiprocessors, four warpgroups each: the first chunk
// is a latency, and the more there are the better they fill each other's gaps.
inline double prepare_us(const PlanShape& s, double on) {
  const double each =
      (s.wide() ? 2.86 : 1.67) * (s.norm ? 1.29 : 1.0) * (1.0 + 0.0256 * (s.keys_a_head() - 1.0));
  const double chunks = s.all_chunks() * static_cast<double>(s.heads);
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
  const double chunks = s.all_chunks() * static_cast<double>(s.heads);
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
  const double all = s.all_chunks() * static_cast<double>(s.heads);
  constexpr double kBytesPerUs = 4.27e6, kCachedBytesPerUs = 6.66e6;
  const double memory = all * (s.key_bytes + s.value_bytes) / kBytesPerUs;
  const double cached =
      all * (s.key_bytes * s.blocks / blocks_a_cta + s.value_bytes) / kCachedBytesPerUs;
  const double busy = std::min(1.0, ctas / s.multiprocessors);
  return limit_us(chunks * chunk, std::max(memory, cached) * busy);
}

// The same of sequences that differ, of which the host knows the lengths: CTAs that have ended leave
// the memory to the others.
inline double serial_in_order_us(const PlanShape& s, double ctas, int blocks_a_cta) {
  const double chunk = s.wide()            ? (blocks_a_cta == 2 ? 2.63 : 1.39)
                       : blocks_a_cta == 2 ? 1.29
                                           : 0.96;
  const double blocks = static_cast<double>(s.blocks) / blocks_a_cta;
  const double memory = (s.key_bytes + s.value_bytes) / blocks / 5.04e6;
  const double cached = (s.key_loads + s.value_bytes / blocks) / 9.66e6;
  return s.walked_in_order_us(
      ctas, [&](double busy) { return limit_us(chunk, busy * std::max(memory, cached)); });
}

// What is walked over in one part, or in two of which the second catches up without outputs, in 3/4
// of the time.
inline double split_walk_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const double ctas = static_cast<double>(s.tasks()) * s.blocks * parts / blocks_a_cta;
  if (parts == 1 && !s.even() && s.starts_in_order(ctas)) {
    return serial_in_order_us(s, ctas, blocks_a_cta);
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
inline double walked_beside_us(const PlanShape& s, const Walks& w) {
  const bool two_parts = w.parts == 2;
  const double left = s.multiprocessors - split_ctas(s, w);
  // Fewer multiprocessors prepare a little faster each, down to what a chunk takes one of them.
  const double all = (two_parts ? 1.63 : 1.33) * prepare_us(s, s.multiprocessors);
  const double chunks = s.all_chunks() * static_cast<double>(s.heads) / left;
  const double rest =
      std::max(all * std::pow(s.multiprocessors / left, 0.123), (s.norm ? 1.59 : 1.28) * chunks);
  // The walk is slower than alone, as memory is busy, the more so the more of them there are.
  const double load = std::min(0.5, split_ctas(s, w) / s.multiprocessors);
  const double busy = (1.01 + 0.062 * load) * (1.0 + 0.032 * (s.keys_a_head() - 1.0));
  const double walked = busy * split_walk_us(s, w.parts, w.blocks_a_cta);
  const double start = two_parts ? 0.0 : 0.527;
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
  const double chunks = s.all_chunks() * static_cast<double>(s.heads);
  const double beyond = (s.call_bytes() + chunks * s.record_bytes() - 9.12e6) / 1.08e8;
  return std::clamp(beyond, 0.0, 1.0);
}

inline double split_at_us(const PlanShape& s, const Walks& w) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = split_ctas(s, w);
  const double us = 11.4 + 5.89 * records_beyond_cache(s) + order_us(s, w.parts) +
                    (s.narrow_states ? (s.wide() ? 0.136 + 3.08 * s.waves(ctas) : 0.927) : 0.0) +
                    (s.wide() ? 4.8 + (s.waves(ctas) > 1 ? 0.134 : 0.0999) * tasks
                              : 0.000155 * tasks * s.blocks * static_cast<double>(s.key_dim)) +
                    (s.wide() ? 4.53 : 3.7) * (s.waves(ctas) - 1);
  if (w.beside) return us + walked_beside_us(s, w);
  const bool first = prepares_beside(s, ctas);
  return us + prepare_us(s, first ? s.multiprocessors - ctas : s.multiprocessors) +
         split_walk_us(s, w.parts, w.blocks_a_cta) - (first ? kBesideUs : 0.0);
}

// With what is known of the lengths.
inline Walks split_form(const PlanShape& s, Walks w) {
  w.us = over_lengths(s, [&](const PlanShape& x) { return split_at_us(x, w); });
  return w;
}

// Every form that cuda_split has for a shape.
template <class Take>
void each_split_form(const PlanShape& s, const Take& take) {
  const double ctas = split_ctas(s, {.parts = 1});
  const auto both = [&](Walks w) {
    take(split_form(s, w));
    w.beside = true;
    if (may_prepare_beside(s, w)) take(split_form(s, w));
  };
  both({.parts = 1});
  if (2 * ctas <= s.multiprocessors && s.chunks() > 4) both({.parts = 2});
  if (s.blocks % 2 == 0 && (!s.wide() || (s.pairs && s.waves(ctas) > 1))) {
    both({.parts = 1, .blocks_a_cta = 2});
  }
}

inline Walks find_split_walks(const PlanShape& s) {
  return cheapest([&](const auto& take) { each_split_form(s, take); });
}

inline Walks split_walks(const PlanShape& s) { return remembered<find_split_walks>(s); }

// States between segments that there is memory for, N and M each.
inline constexpr std::int64_t kMostSegmentStates = 288;

// Of cuda_relay, which has no records: N and M lie in the place of these as well, eight of which are
// larger than one of them.
inline constexpr std::int64_t kMostRelayStates = 384;
inline std::int64_t most_relay_states(const PlanShape& s) {
  return std::min(kMostRelayStates, kMostSegmentStates + s.tokens / 64 * s.heads / 8);
}

// Of one head, that the kernel between segments takes.
inline constexpr int kMostPieces = 63;

// Of one CTA of the kernel that walks for these states (walk_list.cuh).
inline constexpr std::int64_t kMostWalksOfCta = 64;

// With alpha = 0.95, a head has forgotten after so many chunks.
inline constexpr double kRemembered = 61;

// Tasks whose segments remember.
inline double heavy_tasks(const PlanShape& s, int parts) {
  if (s.chunks() <= kRemembered * parts) return static_cast<double>(s.tasks());
  const auto never = static_cast<double>(s.rows * (s.heads / 4));
  const bool nearly = s.chunks() <= (kRemembered + 1) * parts;  // some segments still do
  return nearly ? never + 0.319 * (static_cast<double>(s.tasks()) - never) : never;
}

// Value rows of a CTA that goes through the states between segments: few, while there is room.
inline int state_rows(const PlanShape& s, int parts) {
  return 32 * heavy_tasks(s, parts) <= s.multiprocessors ? 4 : 8;
}

// Of sequences that differ, of which the host knows more than the longest: chunks walked over for N
// and M until the last CTA has ended, and all of them, by two CTAs each (kernel_transfer.cuh).
struct TransferWalks {
  double last = 0, all = 0;
};
inline TransferWalks transfer_walks(const PlanShape& s, int parts) {
  double longest = 0, all = 0, ctas = 0;
  for (int rank = 0; rank < s.rows; ++rank) {
    const double segment = std::ceil(static_cast<double>(s.lengths.all->chunks(rank)) / parts);
    const auto heavy = static_cast<double>(segment <= kRemembered ? s.heads : s.heads / 4);
    const double light = static_cast<double>(s.heads) - heavy;
    all += heavy * segment * (2 * parts - 3) + light * std::min(segment, kRemembered) * (parts - 1);
    ctas += heavy * (2 * parts - 3) + light * (parts - 1);
    longest = std::max(longest, heavy > 0 ? segment : std::min(segment, kRemembered));
  }
  const double places = s.multiprocessors;
  const bool first = ctas <= places;  // all start at once
  return {first ? longest : std::max(longest, all / places + 0.5 * longest), 2 * all};
}

// Parts of all sequences and heads: of short ones not all are there.
inline double segment_count(const PlanShape& s, int parts) {
  if (s.even() || !s.lengths.ranked()) return static_cast<double>(s.tasks()) * parts;
  double count = 0;
  for (int rank = 0; rank < s.rows; ++rank) {
    const int chunks = s.lengths.all->chunks(rank), size = (chunks + parts - 1) / parts;
    count += size > 0 ? (chunks + size - 1) / size : 1;
  }
  return count * static_cast<double>(s.heads);
}

// N and M of sequences alike, two CTAs for each, two a multiprocessor: they all walk at once, or in
// waves. Where some segments forget, those that remember go on alone, and others begin in between.
inline double transfer_us(const PlanShape& s, int parts, double longest) {
  const double heavy = heavy_tasks(s, parts), light = static_cast<double>(s.tasks()) - heavy;
  const double remember = heavy * (2 * parts - 3), forget = light * (parts - 1);
  const double end = std::min(longest, kRemembered), places = s.multiprocessors;
  constexpr double kAlone = 0.832, kBoth = 0.844;
  const auto chunk_us = [&](double walks) {
    return walks <= 0 ? 0.0 : 2 * walks <= places ? kAlone : kBoth;
  };
  if (light <= 0) {
    const double full = std::floor(remember / places);
    return longest * (full * kBoth + chunk_us(remember - full * places));
  }
  if (remember + forget <= places) {
    return end * chunk_us(remember + forget) + (longest - end) * chunk_us(remember);
  }
  return (remember * longest + forget * end) / places * kBoth + 0.0442 * end +
         (remember > 0 ? 0.718 * longest : 0.0);
}

// The same of sequences that differ.
inline double told_transfer_us(const PlanShape& s, int parts) {
  const TransferWalks told = transfer_walks(s, parts);
  return 0.875 * limit_us(told.last, 0.545 * told.all / s.multiprocessors);
}

// CTAs of `transfer` that find a multiprocessor which prepares no chunk are there when it ends.
inline double early_transfers(const PlanShape& s, int parts) {
  const double left = s.multiprocessors - s.all_chunks() * static_cast<double>(s.heads);
  return std::clamp(left / static_cast<double>(2 * s.tasks() * (2 * parts - 3)), 0.0, 1.0);
}

inline double segments_at_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const auto tasks = static_cast<double>(s.tasks());
  const double longest = std::ceil(s.chunks() / parts);
  const double each = s.all_chunks() / s.row_count() / parts;
  const bool told = !s.even() && s.lengths.ranked();
  const double transfer = told ? told_transfer_us(s, parts) : transfer_us(s, parts, longest);
  const int state = state_rows(s, parts);
  const double between =
      s.waves(heavy_tasks(s, parts) * 128 / state) * (state == 4 ? 1.12 : 1.8) * (parts - 2);
  // The last segment stores the final state, which takes as long as some chunks; it may be shorter.
  const double last = s.chunks() - (parts - 1) * longest;
  const double store = s.even() ? std::max(0.0, last + 2.37 - longest) : 0.0;
  const double ctas = tasks * 2 / blocks_a_cta * parts, early = early_transfers(s, parts);
  return 18.0 + order_us(s, parts) + (s.narrow_states ? 1.32 : 0.0) + 0.0417 * tasks +
         0.102 * segment_count(s, parts) + 3.4 * records_beyond_cache(s) - 4.08 * early * early +
         3.11 * (s.waves(ctas) - 1) + prepare_us(s, s.multiprocessors) + transfer + between +
         serial_us(s, ctas, s.busiest(ctas, longest, each) + store, blocks_a_cta);
}

inline double segments_us(const PlanShape& s, int parts, int blocks_a_cta) {
  return over_lengths(s,
                      [&](const PlanShape& x) { return segments_at_us(x, parts, blocks_a_cta); });
}

template <class Take>
void each_segment_form(const PlanShape& s, const Take& take) {
  for (int parts : {3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64}) {
    if (parts > s.chunks() || s.tasks() * (parts - 1) > kMostSegmentStates) break;
    // Parts are of equal size, up to the last: some numbers of parts cannot be had.
    if (std::ceil(s.chunks() / std::ceil(s.chunks() / parts)) < parts) continue;
    for (int blocks : {1, 2}) {
      take(Walks{.parts = parts, .blocks_a_cta = blocks, .us = segments_us(s, parts, blocks)});
    }
  }
}

// parts 0: too few chunks or too many tasks for any.
inline Walks find_segment_walks(const PlanShape& s) {
  return cheapest([&](const auto& take) { each_segment_form(s, take); });
}

inline Walks segment_walks(const PlanShape& s) { return remembered<find_segment_walks>(s); }

// Of sequences of which the host knows more than the longest: what is walked over in each walk of
// cuda_relay, and with outputs.
struct RelayWork {
  std::vector<Alike> walks, outputs;
};
inline RelayWork relay_work(const PlanShape& s, int parts, int cuts) {
  RelayWork work;
  const std::int64_t followed = std::int64_t{parts - 1} * cuts;
  for (int rank = 0; rank < s.rows; ++rank) {
    const auto chunks = static_cast<double>(s.lengths.all->chunks(rank));
    const double piece = std::ceil(chunks / (parts * cuts)), part = piece * cuts;
    const std::int64_t heavy = chunks <= kRemembered * parts ? s.heads : s.heads / 4;
    work.walks.push_back({piece, heavy * (2 * followed - 1)});
    work.walks.push_back({std::min(part, kRemembered), (s.heads - heavy) * (parts - 1)});
    work.outputs.push_back({part, s.heads * (parts - 1)});
    work.outputs.push_back({std::max(0.0, chunks - part * (parts - 1)), s.heads});
  }
  return work;
}

// The same with outputs by the fused kernel, of every part as a sequence of its own (cuda_relay):
// walks make T' on their way.
inline double relay_at_us(const PlanShape& s, int parts, int cuts) {
  const auto tasks = static_cast<double>(s.tasks());
  const double piece = std::ceil(s.chunks() / (parts * cuts)), longest = piece * cuts;
  const double each = s.all_chunks() / s.row_count() / parts;
  const double heavy = heavy_tasks(s, parts), light = tasks - heavy;
  const double followed = (parts - 1) * cuts;
  const double pieces = heavy * (2 * followed - 1), ends = light * (parts - 1);
  const double to_end = std::min(longest, kRemembered);
  const double walked = piece > to_end
                            ? busiest_walker(piece, pieces, to_end, ends, s.multiprocessors)
                            : busiest_walker(to_end, ends, piece, pieces, s.multiprocessors);
  const double walk_us = 1.92 * (s.norm ? 1.03 : 1.0) * (1.0 + 0.0244 * (s.keys_a_head() - 1.0));
  double walk = walk_us * walked + 3.69 * s.waves(pieces + ends);
  const int state = state_rows(s, parts);
  const double step = s.waves(heavy * 128 / state) * (state == 4 ? 1.02 : 2.13);
  const double between = followed > 1 ? 4.75 + step * (followed - 1) : 0.0;
  const double output_us = s.norm ? 2.49 : 2.35;
  double outputs =
      s.busiest(tasks * parts, longest, each) * output_us + 5.49 * s.waves(tasks * parts);
  if (!s.even() && s.lengths.ranked()) {
    RelayWork work = relay_work(s, parts, cuts);
    walk = dealt_out_us(work.walks, walk_us, 4.76, s.multiprocessors);
    outputs = dealt_out_us(work.outputs, output_us, 7.3, s.multiprocessors);
  }
  return 27.1 + walk + between + outputs;
}

// Shorter sequences are faster otherwise, and their calls too short to look at all of this.
inline constexpr double kLeastRelayChunks = 128;

template <class Take>
void each_relay_form(const PlanShape& s, const Take& take) {
  if (s.chunks() < kLeastRelayChunks) return;
  for (int parts : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64}) {
    for (int cuts : {1, 2, 3, 4}) {
      const std::int64_t pieces = std::int64_t{parts} * cuts;
      const std::int64_t followed = pieces - cuts;
      if (static_cast<double>(pieces) > s.chunks() || followed > kMostPieces ||
          s.tasks() * followed > most_relay_states(s) ||
          2 * s.tasks() * followed > kMostWalksOfCta * s.multiprocessors) {
        break;
      }
      const double piece = std::ceil(s.chunks() / static_cast<double>(pieces));
      if (std::ceil(s.chunks() / (piece * cuts)) < parts) continue;
      const double us =
          over_lengths(s, [&](const PlanShape& x) { return relay_at_us(x, parts, cuts); });
      take(Walks{.parts = parts, .cuts = cuts, .us = us});
    }
  }
}

inline Walks find_relay_walks(const PlanShape& s) {
  return cheapest([&](const auto& take) { each_relay_form(s, take); });
}

inline Walks relay_walks(const PlanShape& s) { return remembered<find_relay_walks>(s); }

}  // namespace hyla::gdn
