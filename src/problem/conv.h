// What the two convolutions look like once their arguments are checked.
#pragma once

#include <hyla/conv.h>

#include "core/views.h"

namespace hyla::conv {

// [C, W]
struct WeightView {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t channel_stride = 0, tap_stride = 0;
};

// [slots, C, L]
struct WindowPool {
  void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t slots = 0, columns = 0;
  std::int64_t slot_stride = 0, channel_stride = 0, column_stride = 0;

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
  HYLA_HOST_DEVICE std::int64_t offset(std::int64_t slot, std::int64_t channel,
                                       std::int64_t column) const {
    return slot * slot_stride + channel * channel_stride + column * column_stride;
  }
};

struct Problem {
  core::Sequences sequences;
  std::int64_t C = 0, W = 0;
  core::TokenView x, out;  // a head is a channel
  bool in_place = false;   // out is x: an input must be read before its output is written
  WeightView weight;
  core::VectorView bias;
  WindowPool state;
  core::Slots slots;  // without a pool no row is padding and none is written
  core::IndexView window_offsets;
  Activation activation = Activation::kSilu;

  HYLA_HOST_DEVICE bool padding(std::int64_t row) const {
    return slots.read_slot(row) == core::kNullSlot;
  }
  // First column of the window that row reads.
  HYLA_HOST_DEVICE std::int64_t window_offset(std::int64_t row) const {
    const std::int64_t last = state.columns - (W - 1);
    if (!window_offsets.present()) return last;
    const std::int64_t offset = window_offsets.at(row);
    return offset < 0 ? 0 : offset > last ? last : offset;
  }
};

struct PrefillProblem : Problem {
  core::IndexView has_initial_state;                     // [N]
  core::IndexView checkpoint_offsets, checkpoint_slots;  // [N, M]

  HYLA_HOST_DEVICE bool starts_from_pool(std::int64_t row) const {
    return state.present() && (!has_initial_state.present() || has_initial_state.at(row) != 0);
  }
  std::int64_t checkpoint_count(std::int64_t row) const;
};

struct UpdateProblem : Problem {
  core::IndexView commit_lengths;  // [B]

  HYLA_HOST_DEVICE std::int64_t commit_length(std::int64_t row) const {
    return commit_lengths.present() ? commit_lengths.at(row) : sequences.length(row);
  }
};

PrefillProblem validate(const PrefillParams& params, const Context& context);
UpdateProblem validate(const UpdateParams& params, const Context& context);

}  // namespace hyla::conv
