// Which of the tile kernels is expected to be fastest: a cost model in microseconds measured on an
// H200, with what the host knows of a batch: sequences, heads and tokens in all. Lengths are on the
// device, so sequences are taken to be equally long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hyla::gdn {

// A chunk of a task: fused; serial, with half of the value rows and T' and P prepared; the same for
// the state only; prepared, on one of three warpgroups of a multiprocessor, a third of the time.
inline constexpr double kFusedChunkUs = 2.78, kSerialChunkUs = 1.12, kStateChunkUs = 0.84,
                        kPrepareChunkUs = 1.3;
inline constexpr double kFusedStartUs = 9, kSplitStartUs = 13, kSegmentStartUs = 30,
                        kSegmentUs = 1.3;  // of the states between

struct PlanShape {
  std::int64_t rows = 0, heads = 0, tokens = 0;
  int multiprocessors = 0;

  std::int64_t tasks() const { return rows * heads; }
  double chunks() const {  // of a sequence
    return static_cast<double>((tokens / std::max<std::int64_t>(1, rows) + 63) / 64);
  }
  // CTAs with half of the value rows that run at once, for each task.
  std::int64_t ctas_a_task() const { return tasks() == 0 ? 0 : multiprocessors / (2 * tasks()); }
};

inline double fused_us(const PlanShape& s) {
  const std::int64_t waves = (s.tasks() + s.multiprocessors - 1) / s.multiprocessors;
  return kFusedStartUs + static_cast<double>(waves) * s.chunks() * kFusedChunkUs;
}

inline double prepare_us(const PlanShape& s) {
  const double each = s.chunks() * static_cast<double>(s.tasks()) / s.multiprocessors;
  return std::max(3.0, each) * kPrepareChunkUs;
}

// One walk, or two parts of which the second catches up without outputs.
inline int split_parts(const PlanShape& s) {
  return s.ctas_a_task() >= 2 && s.chunks() > 8 ? 2 : 1;
}

inline double split_us(const PlanShape& s) {
  const double share =
      split_parts(s) == 1 ? 1.0 : kSerialChunkUs / (2 * kSerialChunkUs - kStateChunkUs);
  return kSplitStartUs + prepare_us(s) + share * s.chunks() * kSerialChunkUs;
}

// Segments with transfers; the CTAs for N and M share multiprocessors in pairs.
inline constexpr int kMostSegments = 32;

inline double segments_us(const PlanShape& s, int parts) {
  return kSegmentStartUs + prepare_us(s) + kSegmentUs * parts +
         s.chunks() / parts * (1.25 * kStateChunkUs + kSerialChunkUs);
}

// 0: too few CTAs a task for any.
inline int segment_parts(const PlanShape& s) {
  const auto most = static_cast<int>(std::min<std::int64_t>(kMostSegments, s.ctas_a_task()));
  int best = most < 3 ? 0 : 3;
  for (int parts = 4; parts <= most; ++parts) {
    if (segments_us(s, parts) < segments_us(s, best)) best = parts;
  }
  return best;
}

}  // namespace hyla::gdn
