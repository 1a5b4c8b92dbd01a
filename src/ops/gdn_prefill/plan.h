// Which kernels are expected to be fastest: a cost model in microseconds measured on an H200, with
// what the host knows of a batch: sequences, heads and tokens in all. Lengths and gates are on the
// device, so sequences are taken to be equally long, and a quarter of the heads not to forget.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <hyla/host_device.h>

namespace hyla::gdn {

struct PlanShape {
  std::int64_t rows = 0, heads = 0, tokens = 0;
  int multiprocessors = 0;
  int blocks = 2;         // of 64 value rows
  double head_bytes = 0;  // of a chunk and head in memory: q, k, v, out and what is prepared
  double task_us = 5.7;   // of a task's states in cuda_fused, read and written
  bool wide = false;      // K above 128
  bool pairs = true;  // then, may two blocks share a CTA? Their bits are not known to be the same

  std::int64_t tasks() const { return rows * heads; }
  double chunks() const {  // of a sequence
    return static_cast<double>((tokens / std::max<std::int64_t>(1, rows) + 63) / 64);
  }
  double waves(double ctas, int at_once = 1) const {
    const double room = static_cast<double>(multiprocessors) * at_once;
    return static_cast<double>(static_cast<std::int64_t>((ctas + room - 1) / room));
  }
};

// A chunk takes 2.43 us with everything in one CTA; a task its states.
inline double fused_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double busy = std::min(1.0, tasks / s.multiprocessors);
  return 5.8 + s.waves(tasks) * (s.chunks() * 2.43 + s.task_us * (0.5 + 0.5 * busy));
}

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor.
inline double block_us(const PlanShape& s) {
  const auto each = s.tokens / std::max<std::int64_t>(1, s.rows);
  const auto steps = static_cast<double>((each + 7) / 8);
  const auto ctas = static_cast<double>(s.tasks() * s.blocks * 2);
  const double on_one = std::min(6.0, ctas / s.multiprocessors);
  return 3 + s.waves(ctas, 6) * steps * (2.55 + 0.25 * on_one) +
         0.019 * static_cast<double>(s.tasks());
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_us(const PlanShape& s, std::int64_t K) {
  const auto each = static_cast<double>(s.tokens / std::max<std::int64_t>(1, s.rows));
  const auto rows = static_cast<double>(s.tasks() * s.blocks * K);
  return 5.5 + each * std::max(0.5, 3.25e-5 * rows) + 1.25e-4 * rows;
}

// T', P and factors of all chunks, four warpgroups a multiprocessor.
inline double prepare_us(const PlanShape& s) {
  return 3.5 + (s.wide ? 2.36 : 1.45) *
                   std::max(3.0, s.chunks() * static_cast<double>(s.tasks()) / s.multiprocessors);
}

// How the chunks are walked over: parts of a sequence, blocks of value rows on a multiprocessor.
struct Walks {
  int parts = 0, blocks_a_cta = 1;
  double us = 0;
};

// `ctas` of one or two blocks walk over `chunks` each with outputs; no faster than the memory.
inline double serial_us(const PlanShape& s, double ctas, double chunks, int blocks_a_cta) {
  const bool crowded = 4 * ctas > 3 * s.multiprocessors;
  const double narrow = blocks_a_cta == 2 ? 1.5 : crowded ? 1.16 : 1.08;
  const double wide = blocks_a_cta == 2 ? 2.95 : s.waves(ctas) > 1 ? 2.1 : 1.67;
  const double chunk = s.wide ? wide : narrow;
  constexpr double kBytesPerUs = 4.05e6;
  const double memory = s.chunks() * static_cast<double>(s.tasks()) * s.head_bytes / kBytesPerUs;
  return (crowded ? 10 : 7) + std::max(s.waves(ctas) * chunks * chunk, memory);
}

// One walk, or two parts of which the second catches up without outputs, in 3/4 of the time.
inline Walks split_walks(const PlanShape& s) {
  const auto ctas = static_cast<double>(s.tasks() * s.blocks);
  Walks walks{1, 1, serial_us(s, ctas, s.chunks(), 1)};
  if (2 * ctas <= s.multiprocessors && s.chunks() > 8) {
    walks = {2, 1, serial_us(s, 2 * ctas, 0.84 * s.chunks(), 1)};
  }
  if (s.blocks % 2 == 0 && (!s.wide || (s.pairs && s.waves(ctas) > 1))) {
    const double us = serial_us(s, ctas / 2, s.chunks(), 2);
    if (us < walks.us) walks = {1, 2, us};
  }
  walks.us += prepare_us(s) + 0.06 * static_cast<double>(s.tasks());
  // So few chunks that the second kernel starts beside the first.
  const double free = s.multiprocessors - ctas / walks.blocks_a_cta * walks.parts;
  if (s.chunks() * static_cast<double>(s.tasks()) <= 4 * free) walks.us -= 3;
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
  const double length = s.chunks() / parts, light = std::min(length, kRemembered);
  const auto tasks = static_cast<double>(s.tasks());
  const double heavy = heavy_tasks(s, parts);
  // Two CTAs a multiprocessor. The first to end, with the shorter walks, make room for the others;
  // in front of those there is a round of short walks for every 2/3 of a wave too many.
  const double ctas = 2 * (tasks * (parts - 1) + heavy * (parts - 2));
  const double rounds = std::ceil(1.5 * std::max(0.0, ctas / (2.0 * s.multiprocessors) - 1));
  const double transfer = 14 + 1.05 * (rounds * light + length);
  const int rows = state_rows(s, parts);
  const double states = 3 + s.waves(heavy * 128 / rows) * (rows == 4 ? 1.5 : 1.9) * (parts - 2);
  return prepare_us(s) + transfer + states +
         serial_us(s, tasks * 2 / blocks_a_cta * parts, length, blocks_a_cta);
}

// parts 0: too few chunks or too many tasks for any.
inline Walks segment_walks(const PlanShape& s) {
  Walks best;
  for (int parts : {3, 4, 5, 6, 8, 10, 12, 14, 16, 24, 32, 48, 64}) {
    if (parts > s.chunks() || s.tasks() * (parts - 1) > kMostSegmentStates) break;
    for (int blocks : {1, 2}) {
      const double us = segments_us(s, parts, blocks);
      if (best.parts == 0 || us < best.us) best = {parts, blocks, us};
    }
  }
  return best;
}

// Long sequences among short ones (long_rows.cuh), weighed on the device: hundredths of microseconds.
inline constexpr int kMostLongRows = 16;

struct LongPlan {
  int heads = 1, multiprocessors = 1;
  int blocks_a_cta = 1, parts = 1;  // of a long sequence's walk
  int rows = 0, chunks = 0, longest = 0;

  static constexpr std::int64_t kChunk = 243, kTask = 570, kPrepared = 145;

  HYLA_HOST_DEVICE int ctas_a_row() const { return heads * 2 / blocks_a_cta * parts; }
  // Some multiprocessors are left for the others.
  HYLA_HOST_DEVICE int most_ctas() const { return multiprocessors - multiprocessors / 8; }
  HYLA_HOST_DEVICE std::int64_t walk(std::int64_t n) const {
    return blocks_a_cta == 2 ? n * 155 : parts == 2 ? n * 92 : n * 110;
  }
  // If the fused kernel has all sequences and its CTAs end together.
  HYLA_HOST_DEVICE std::int64_t balanced() const {
    return (chunks * kChunk + rows * kTask) * heads / multiprocessors;
  }
  // Chunks of a sequence that is not long.
  HYLA_HOST_DEVICE int most() const {
    const std::int64_t all = balanced();
    return longest * kChunk * 4 <= all * 5 ? longest : static_cast<int>(all / kChunk);
  }
  // `count` sequences with `prepared` chunks are long.
  HYLA_HOST_DEVICE bool pays(int count, int prepared) const {
    const int ctas = count * ctas_a_row();
    if (ctas > most_ctas()) return false;
    const std::int64_t prepare = 350 + prepared * kPrepared * heads / multiprocessors;
    const std::int64_t walks = 1000 + walk(longest);
    const std::int64_t others =
        ((chunks - prepared) * kChunk + (rows - count) * kTask) * heads / (multiprocessors - ctas);
    const std::int64_t alone = longest * kChunk > balanced() ? longest * kChunk : balanced();
    return (prepare + (walks > others ? walks : others)) * 10 < alone * 9;
  }
};

// How many sequences may turn out to be long, with what the host knows (`longest`: tokens of the
// longest sequence, 0 if nobody said); 0: it is not worth a look.
inline int long_rows(LongPlan& plan, std::int64_t rows, std::int64_t heads, std::int64_t tokens,
                     std::int64_t longest, int multiprocessors) {
  if (rows < 2 || heads > multiprocessors || tokens / 64 > (std::int64_t{1} << 30)) return 0;
  plan.heads = static_cast<int>(heads);
  plan.multiprocessors = multiprocessors;
  plan.blocks_a_cta = 10 * plan.heads > 3 * multiprocessors ? 2 : 1;
  plan.parts = 8 * plan.heads <= multiprocessors ? 2 : 1;
  plan.rows = static_cast<int>(std::min<std::int64_t>(rows, 1 << 30));
  plan.chunks = static_cast<int>(tokens / 64);
  plan.longest = static_cast<int>((longest > 0 ? std::min(longest, tokens) : tokens) / 64);
  // The look takes 10 us: where the longest sequence takes longer than all work shared evenly. If it
  // is not known, only where it might take many times as long, as it may with few heads.
  constexpr std::int64_t kWorst = 8, kLook = 3000;
  const std::int64_t most = longest > 0 ? plan.balanced() * 5 / 4 : kWorst * plan.balanced();
  if (plan.longest * LongPlan::kChunk <= most + kLook) return 0;
  return std::min({static_cast<int>(std::min<std::int64_t>(rows, kMostLongRows)),
                   plan.most_ctas() / plan.ctas_a_row()});
}

}  // namespace hyla::gdn
