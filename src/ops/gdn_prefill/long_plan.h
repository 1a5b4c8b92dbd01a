// Whether sequences much longer than the others are taken out of the fused kernel (long_rows.cuh),
// weighed on the host with what it knows and on the device with the lengths.
#pragma once

#include <algorithm>
#include <cstdint>

#include <hyla/host_device.h>

namespace hyla::gdn {

inline constexpr int kMostLongRows = 16;

// Costs in hundredths of microseconds.
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
