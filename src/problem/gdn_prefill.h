#pragma once

#include "problem/gdn.h"

namespace hyla::gdn {

inline constexpr std::int64_t kCheckpointGranule = 64;

struct PrefillProblem : Problem {
  std::int64_t max_length = 0;        // of a sequence; 0: not known
  core::IndexView has_initial_state;  // [N]
  std::int64_t checkpoint_every = 0;
  core::IndexView checkpoint_offsets;  // [N, C]
  PoolView checkpoints;                // rows of a buffer, from checkpoint_starts[n] on; or absent
  core::IndexView checkpoint_starts;   // [N + 1]
  core::IndexView checkpoint_slots;    // [N, C]: slots of `final`
  double decay_cutoff_log2 = 0;        // 0: none
  // What the host was told of the lengths, for the choice of a plan alone: nothing that is computed
  // depends on it. The key stands for all of them.
  core::IndexView host_lengths;  // [N] on the host
  std::uint64_t lengths_key = 0;

  HYLA_HOST_DEVICE bool starts_from_pool(std::int64_t row) const {
    return initial.present() && (!has_initial_state.present() || has_initial_state.at(row) != 0);
  }
  std::int64_t checkpoint_count(std::int64_t row) const;
  std::int64_t checkpoint_offset(std::int64_t row, std::int64_t i) const {
    return checkpoint_offsets.present() ? checkpoint_offsets.at(row, i)
                                        : (i + 1) * checkpoint_every;
  }
};

PrefillProblem validate(const PrefillParams& params, const Context& context);
void check_bounds(const PrefillBounds& bounds);

}  // namespace hyla::gdn
