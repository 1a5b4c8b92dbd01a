// Which kernels are expected to be fastest: a cost model in microseconds, fitted to what random shapes
// took on an H200 (`hyla bench --plans`), with what the host knows of a batch: sequences, heads, tokens
// in all and, if the caller said so, of the longest sequence. Gates are on the device, so a quarter of
// the heads is taken not to forget.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/gdn_prefill/long_plan.h"

namespace hyla::gdn {

struct PlanShape {
  std::int64_t rows = 0, heads = 0, tokens = 0;
  int multiprocessors = 0;
  int blocks = 2;  // of 64 value rows
  // Of a chunk and head in memory: q, k and what is prepared; v and out.
  double key_bytes = 0, value_bytes = 0;
  // Tokens of the longest sequence; 0: not known, all are taken to be alike.
  std::int64_t longest = 0;
  std::int64_t key_dim = 128;
  bool norm = false;           // of q and k
  bool narrow_states = false;  // of 16 bits
  bool reads_states = true;    // or starts from zero
  // K above 128: may two blocks share a CTA? Their bits are not known to be the same.
  bool pairs = true;

  bool wide() const { return key_dim > 128; }
  std::int64_t tasks() const { return rows * heads; }
  double row_count() const { return static_cast<double>(std::max<std::int64_t>(1, rows)); }
  // Tokens of the longest sequence; what the caller said may be wrong.
  std::int64_t length() const {
    const std::int64_t mean = divided(tokens, std::max<std::int64_t>(1, rows));
    return std::clamp(longest, mean, std::max(mean, tokens));
  }
  double chunks() const { return static_cast<double>(divided(length(), 64)); }
  double all_chunks() const { return pieces(64); }
  // Pieces of `size` tokens of all sequences: those that are not alike end anywhere in their last one.
  double pieces(std::int64_t size) const {
    const double most = static_cast<double>(rows * divided(length(), size));
    if (rows * length() <= tokens + std::max(rows, tokens / 16)) return most;
    const auto least = static_cast<double>(std::max(rows, divided(length(), size)));
    const double all = static_cast<double>(tokens) / static_cast<double>(size);
    return std::min(most, std::max(least, all + 0.5 * static_cast<double>(rows)));
  }
  bool even(std::int64_t size = 64) const {
    return pieces(size) == static_cast<double>(rows * divided(length(), size));
  }
  double waves(double ctas, int at_once = 1) const {
    return std::ceil(ctas / (static_cast<double>(multiprocessors) * at_once));
  }
  // What the busiest multiprocessor walks over, if CTAs walk over `most` and over `mean` in the mean.
  double busiest(double ctas, double most, double mean) const {
    if (even() || ctas <= multiprocessors) return waves(ctas) * most;
    return std::max(most, mean * ctas / multiprocessors + 0.5 * most);
  }

  static std::int64_t divided(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
};

// The larger of two limits, and a little more where they are alike.
inline double limit_us(double a, double b) {
  return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b));
}

// Everything in one CTA; a task costs its states, and more of them beside each other memory's time.
inline double fused_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double busy = std::min(1.0, tasks / s.multiprocessors);
  const double chunk = (s.norm ? 2.62 : 2.35) * (1 + 0.08 * busy);
  const double task =
      (s.reads_states ? 6.1 : 3.3) * (0.28 + 0.72 * busy) + (s.narrow_states ? 1.0 : 0.0);
  const double one = s.chunks() * chunk + task;
  const double shared =
      (s.all_chunks() * chunk + rows * task) * static_cast<double>(s.heads) / s.multiprocessors;
  const double tail = tasks > s.multiprocessors ? 0.43 * s.all_chunks() / rows * chunk : 0;
  const double us =
      7.3 + 0.046 * rows + (s.even() ? s.waves(tasks) * one : std::max(one, shared + tail));
  LongPlan plan;
  if (long_rows(plan, s.rows, s.heads, s.tokens, s.longest, s.multiprocessors) == 0) return us;
  constexpr double kLook = 6.3;
  // One sequence with most of the chunks is surely taken out. Of others the host cannot say.
  if (s.even() || s.chunks() < 0.6 * s.all_chunks()) return us + kLook;
  const auto heads = static_cast<double>(s.heads);
  const double prepare = 1.5 * s.chunks() * heads / s.multiprocessors;
  const double walk = 10 + 0.01 * static_cast<double>(plan.walk(1)) * s.chunks();
  const double others = ((s.all_chunks() - s.chunks()) * chunk + (rows - 1) * task) * heads /
                        (s.multiprocessors - plan.ctas_a_row());
  return std::min(us + kLook, 12 + kLook + prepare + std::max(walk, others));
}

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor.
inline double block_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = tasks * s.blocks * 2;
  const double on_one = std::min(6.0, ctas / s.multiprocessors);
  const double one = static_cast<double>(PlanShape::divided(s.length(), 8)) *
                     (2.07 + 0.134 * on_one + (s.norm ? 0.059 : 0.0));
  const double shared =
      0.548 * s.pieces(8) * static_cast<double>(s.heads) * s.blocks * 2 / s.multiprocessors;
  return (s.narrow_states ? 2.15 : 3.1) + (s.narrow_states ? 0.0133 : 0.0181) * tasks +
         (s.even(8) ? s.waves(ctas, 6) * one : limit_us(one, shared));
}

// Steps of 16 tokens. With a multiprocessor for every 64 value rows they are made ahead, and a step is
// a latency; otherwise three CTAs share one, loads, products and stores of all of them in turns.
inline double steps_us(const PlanShape& s) {
  const auto steps = static_cast<double>(PlanShape::divided(s.length(), 16));
  const double ctas = static_cast<double>(s.tasks()) * s.blocks;
  const double norm = s.norm ? 0.043 : 0;
  if (ctas <= s.multiprocessors) {
    const bool halves = 2 * ctas <= s.multiprocessors;
    return (halves ? 4.0 : 5.0) + (s.narrow_states ? 0.73 : 0.0) +
           steps * ((halves ? 0.586 : 0.664) + norm);
  }
  const double state = s.narrow_states ? 1.8 : 0.0;
  const auto cta = [&](double at_once) {
    return 2.7 + 2.53 * at_once + state + steps * (1.96 - 0.114 * at_once + norm);
  };
  const double on_one = ctas / s.multiprocessors, mean = s.pieces(16) / s.row_count();
  const double shared =
      on_one * (2.25 + (s.narrow_states ? 0.47 : 0.0) + mean * (0.934 + 3.7 * norm));
  if (!s.even(16) || on_one <= 3 || on_one >= 6) {
    return limit_us(cta(std::min(3.0, on_one)), shared);
  }
  // A second wave, which is not full.
  return std::max(shared, cta(3) + cta(on_one - 3));
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_us(const PlanShape& s) {
  const double rows = static_cast<double>(s.heads * s.blocks * s.key_dim) / 128;
  const double one = static_cast<double>(s.length()) * (s.norm ? 0.613 : 0.521);
  return 3.4 + limit_us(one, s.pieces(1) * rows * 4.1e-3) +
         static_cast<double>(s.rows) * rows * (s.narrow_states ? 4.6e-3 : 1.75e-2);
}

// T', P and factors of all chunks, four warpgroups a multiprocessor.
inline double prepare_us(const PlanShape& s) {
  const double each = (s.wide() ? 1.61 : 1.5) * (s.norm ? 1.18 : 1.0);
  const double chunks = s.all_chunks() * static_cast<double>(s.heads);
  constexpr double kBytesPerUs = 2.65e6;
  return limit_us(each * std::max(1.0, chunks / s.multiprocessors),
                  chunks * s.key_bytes / kBytesPerUs);
}

// How the chunks are walked over: parts of a sequence, blocks of value rows on a multiprocessor.
struct Walks {
  int parts = 0, blocks_a_cta = 1;
  double us = 0;
};

// `ctas` of one or two blocks walk over chunks with outputs, the busiest multiprocessor over `chunks`; no
// faster than the memory.
inline double serial_us(const PlanShape& s, double ctas, double chunks, int blocks_a_cta) {
  const bool crowded = 4 * ctas > 3 * s.multiprocessors;
  const double narrow = blocks_a_cta == 2 ? (crowded ? 1.65 : 1.53) : crowded ? 1.075 : 1.05;
  const double wide = blocks_a_cta == 2 ? 2.87 : crowded ? 1.64 : 1.52;
  // Through L2: blocks of value rows read the same keys, queries and records.
  const double bytes = s.key_bytes * s.blocks / blocks_a_cta + s.value_bytes;
  constexpr double kBytesPerUs = 6.6e6;
  const double memory = s.all_chunks() * static_cast<double>(s.heads) * bytes / kBytesPerUs;
  return limit_us(chunks * (s.wide() ? wide : narrow), memory);
}

// One walk, or two parts of which the second catches up without outputs, in 3/4 of the time.
inline double split_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double ctas = tasks * s.blocks * parts / blocks_a_cta;
  const double walk = s.busiest(ctas, s.chunks(), s.all_chunks() / rows);
  double us = 13.2 + 0.03 * rows + (s.narrow_states ? 1.0 : 0.0) +
              (s.wide() ? 6.9 + 0.145 * tasks
                        : 1.47e-4 * tasks * s.blocks * static_cast<double>(s.key_dim)) +
              (s.wide() ? 6.2 : 2.9) * (s.waves(ctas) - 1);
  us += prepare_us(s) + serial_us(s, ctas, parts == 2 ? 0.787 * walk : walk, blocks_a_cta);
  // So few chunks that the second kernel starts beside the first.
  const bool beside =
      s.all_chunks() * static_cast<double>(s.heads) <= 4 * (s.multiprocessors - ctas);
  return us - (beside ? 2.4 : 0.0);
}

inline Walks split_walks(const PlanShape& s) {
  const auto ctas = static_cast<double>(s.tasks() * s.blocks);
  Walks walks{1, 1, split_us(s, 1, 1)};
  const auto consider = [&](int parts, int blocks_a_cta) {
    const double us = split_us(s, parts, blocks_a_cta);
    if (us < walks.us) walks = {parts, blocks_a_cta, us};
  };
  if (2 * ctas <= s.multiprocessors && s.chunks() > 4) consider(2, 1);
  if (s.blocks % 2 == 0 && (!s.wide() || (s.pairs && s.waves(ctas) > 1))) consider(1, 2);
  return walks;
}

// States between segments that there is memory for, N and M each.
inline constexpr std::int64_t kMostSegmentStates = 288;

// With alpha = 0.95, a head has forgotten after so many chunks.
inline constexpr double kRemembered = 61;

// Tasks whose segments remember.
inline double heavy_tasks(const PlanShape& s, int parts) {
  const auto tasks = static_cast<double>(s.tasks());
  return s.chunks() <= kRemembered * parts ? tasks : std::max(1.0, tasks / 4);
}

// Value rows of a CTA that goes through the states between segments: few, while there is room.
inline int state_rows(const PlanShape& s, int parts) {
  return 32 * heavy_tasks(s, parts) <= s.multiprocessors ? 4 : 8;
}

inline double segments_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double longest = std::ceil(s.chunks() / parts), each = s.all_chunks() / rows / parts;
  const double heavy = heavy_tasks(s, parts);
  // All that is walked over for N, and for M; two CTAs of 64 rows for each, two a multiprocessor.
  const double states = (tasks - heavy) * std::min(each, kRemembered) + heavy * each;
  const double walked = 2 * (states * (parts - 1) + heavy * each * (parts - 2));
  const double transfer = 0.91 * limit_us(longest, 0.656 * walked / s.multiprocessors);
  const int state = state_rows(s, parts);
  const double between = s.waves(heavy * 128 / state) * (state == 4 ? 1.16 : 1.9) * (parts - 2);
  const double ctas = tasks * 2 / blocks_a_cta * parts;
  return 17.8 + 0.034 * rows + 0.042 * tasks + 0.195 * tasks * parts + prepare_us(s) + transfer +
         between + serial_us(s, ctas, s.busiest(ctas, longest, each), blocks_a_cta);
}

// parts 0: too few chunks or too many tasks for any.
inline Walks segment_walks(const PlanShape& s) {
  Walks best;
  for (int parts : {3, 4, 5, 6, 8, 10, 12, 14, 16, 24, 32, 48, 64}) {
    if (parts > s.chunks() || s.tasks() * (parts - 1) > kMostSegmentStates) break;
    // Parts are of equal size, up to the last: some numbers of parts cannot be had.
    if (std::ceil(s.chunks() / std::ceil(s.chunks() / parts)) < parts) continue;
    for (int blocks : {1, 2}) {
      const double us = segments_us(s, parts, blocks);
      if (best.parts == 0 || us < best.us) best = {parts, blocks, us};
    }
  }
  return best;
}

}  // namespace hyla::gdn
