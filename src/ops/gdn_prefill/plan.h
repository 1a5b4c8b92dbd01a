// Which of the tile kernels is expected to be fastest: a cost model of microseconds measured on an
// H200, with what the host knows of a batch: sequences, heads and tokens in all. Lengths are on the
// device, so sequences are taken to be equally long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "problem/gdn_prefill.h"

namespace hyla::gdn {

// A CTA of the fused kernel takes this long for a chunk; one of the serial kernel, which has half
// of the value rows and finds everything prepared; and one of the prepare kernel, whose three
// warpgroups each make a chunk of a head in three times this.
inline constexpr double kFusedChunkUs = 2.7, kSerialChunkUs = 1.1, kPrepareChunkUs = 1.3;
inline constexpr double kFusedStartUs = 8, kSplitStartUs = 11;

struct PlanShape {
  std::int64_t rows, heads, tokens;
  int multiprocessors;

  std::int64_t tasks() const { return rows * heads; }
  double chunks() const {  // of a sequence
    return static_cast<double>((tokens / std::max<std::int64_t>(1, rows) + 63) / 64);
  }
};

inline double fused_us(const PlanShape& s) {
  const std::int64_t waves = (s.tasks() + s.multiprocessors - 1) / s.multiprocessors;
  return kFusedStartUs + static_cast<double>(waves) * s.chunks() * kFusedChunkUs;
}

// More tasks than this keep all multiprocessors busy without being split.
inline bool may_split(std::int64_t tasks, int multiprocessors) {
  return 2 * tasks <= multiprocessors;
}

inline double split_us(const PlanShape& s) {
  const double prepared = s.chunks() * static_cast<double>(s.tasks()) / s.multiprocessors;
  return kSplitStartUs + std::max(1.0, prepared) * kPrepareChunkUs + s.chunks() * kSerialChunkUs;
}

}  // namespace hyla::gdn
