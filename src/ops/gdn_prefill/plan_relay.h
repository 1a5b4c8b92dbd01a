// The cost model of cuda_relay.
#pragma once

#include "ops/gdn_prefill/plan_segments.h"
#include "ops/gdn_prefill/walk_shares.h"

namespace hyla::gdn {

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
inline double relay_at_us(const PlanShape& s, int parts, int cuts, PlanTerms& terms) {
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
  terms = {walk, between, outputs, heavy / tasks, 0.0};
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
      take(Walks{.parts = parts, .cuts = cuts});
    }
  }
}

}  // namespace hyla::gdn
