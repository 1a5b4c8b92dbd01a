// Whether sequences much longer than the others are taken out of the fused kernel (long_rows.cuh),
// and how many: weighed on the host with what it knows and on the device with the lengths.
#pragma once

#include <algorithm>
#include <cstdint>

#include <hyla/host_device.h>

namespace hyla::gdn {

inline constexpr int kMostLongRows = 16;

// Costs in hundredths of microseconds.
struct LongPlan {
  int heads = 1, multiprocessors = 1;
  int blocks_a_cta = 1, most_parts = 1;  // of a long sequence's walk
  int rows = 0, chunks = 0;              // of all sequences

  static constexpr std::int64_t kChunk = 233, kTask = 570, kPrepared = 145, kImpossible = 1LL << 60;

  HYLA_HOST_DEVICE int ctas_a_row(int parts) const { return heads * 2 / blocks_a_cta * parts; }
  // Some multiprocessors are left for the others.
  HYLA_HOST_DEVICE int most_ctas() const { return multiprocessors - multiprocessors / 8; }
  HYLA_HOST_DEVICE std::int64_t walk(std::int64_t n, int parts) const {
    return blocks_a_cta == 2 ? n * 155 : parts == 2 ? n * 92 : n * 110;
  }
  // Sequences with so many chunks by the fused kernel on some multiprocessors, if its CTAs end
  // together; the longest has at least its own time.
  HYLA_HOST_DEVICE std::int64_t shared(std::int64_t count, std::int64_t of_chunks,
                                       std::int64_t longest, std::int64_t on) const {
    const std::int64_t all = (of_chunks * kChunk + count * kTask) * heads / on;
    const std::int64_t one = longest * kChunk + (count > 0 ? kTask : 0);
    return all > one ? all : one;
  }
  HYLA_HOST_DEVICE std::int64_t balanced() const {
    return shared(rows, chunks, 0, multiprocessors);
  }
  // The `count` longest are taken out, which have `prepared` chunks, `longest` the first of them;
  // the first of the others has `next`. Their walk has up to `parts` parts.
  HYLA_HOST_DEVICE std::int64_t cost(int count, int prepared, int longest, int next,
                                     int parts) const {
    if (count == 0) return shared(rows, chunks, longest, multiprocessors);
    const int ctas = count * ctas_a_row(parts);
    if (ctas > most_ctas() || longest <= next) return kImpossible;
    const std::int64_t prepare = 350 + prepared * kPrepared * heads / multiprocessors;
    const std::int64_t walks = 1000 + walk(longest, parts);
    const std::int64_t others =
        shared(rows - count, chunks - prepared, next, multiprocessors - ctas);
    return prepare + (walks > others ? walks : others);
  }
  // Worth it: a tenth less than without.
  HYLA_HOST_DEVICE static bool pays(std::int64_t with, std::int64_t without) {
    return with < kImpossible && with * 10 < without * 9;
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
  plan.most_parts = 8 * plan.heads <= multiprocessors ? 2 : 1;
  plan.rows = static_cast<int>(std::min<std::int64_t>(rows, 1 << 30));
  plan.chunks = static_cast<int>(tokens / 64);
  // The look takes 10 us: where the longest sequence takes longer than all work shared evenly. If
  // it is not known, where it would if it were twice as long as the mean, or might many times as
  // long.
  constexpr std::int64_t kWorst = 8, kLook = 3000;
  const std::int64_t known = (longest > 0 ? std::min(longest, tokens) : 0) / 64;
  const std::int64_t guess =
      std::max<std::int64_t>(2 * plan.chunks / plan.rows, plan.chunks / kWorst);
  const std::int64_t likely = longest > 0 ? known : guess;
  if (likely * LongPlan::kChunk <= plan.balanced() * 5 / 4 + kLook) return 0;
  return std::min({static_cast<int>(std::min<std::int64_t>(rows, kMostLongRows)),
                   plan.most_ctas() / plan.ctas_a_row(1)});
}

}  // namespace hyla::gdn
