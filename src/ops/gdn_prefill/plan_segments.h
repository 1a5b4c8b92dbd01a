// The cost model of cuda_segments.
#pragma once

#include "ops/gdn_prefill/plan_split.h"

namespace hyla::gdn {

// States between segments that there is memory for, N and M each.
inline constexpr std::int64_t kMostSegmentStates = 288;

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
  const double left = s.multiprocessors - s.head_chunks();
  return std::clamp(left / static_cast<double>(2 * s.tasks() * (2 * parts - 3)), 0.0, 1.0);
}

inline double segments_at_us(const PlanShape& s, int parts, int blocks_a_cta, PlanTerms& terms) {
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
  const double count = segment_count(s, parts);
  const double walk = serial_us(s, ctas, s.busiest(ctas, longest, each) + store, blocks_a_cta);
  terms = {transfer, between, walk, count / s.multiprocessors, early};
  return 18.0 + order_us(s, parts) + (s.narrow_states ? 1.32 : 0.0) + 0.0417 * tasks +
         0.102 * count + 3.4 * records_beyond_cache(s) - 4.08 * early * early +
         3.11 * (s.waves(ctas) - 1) + prepare_us(s, s.multiprocessors) + transfer + between + walk;
}

template <class Take>
void each_segment_form(const PlanShape& s, const Take& take) {
  for (int parts : {3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64}) {
    if (parts > s.chunks() || s.tasks() * (parts - 1) > kMostSegmentStates) break;
    // Parts are of equal size, up to the last: some numbers of parts cannot be had.
    if (std::ceil(s.chunks() / std::ceil(s.chunks() / parts)) < parts) continue;
    for (int blocks : {1, 2}) take(Walks{.parts = parts, .blocks_a_cta = blocks});
  }
}

}  // namespace hyla::gdn
