// Which tensors of a convolution can be reached in accesses of several elements.
#pragma once

#include "device/alignment.h"
#include "ops/causal_conv1d/arguments.cuh"

namespace hyla::conv {

// `chunk` neighbouring channels of x or out.
inline bool side_by_side(const core::TokenView& view, std::int64_t chunk) {
  core::TokenView tokens = view;
  tokens.head_stride = 0;  // channels are stepped through in whole accesses
  return view.head_stride == 1 && device::aligned(tokens, chunk);
}

inline bool has_wide_channels(const Problem& p, std::int64_t chunk) {
  return p.C % chunk == 0 && side_by_side(p.x, chunk) && side_by_side(p.out, chunk);
}

inline FilterView filter_of(const Problem& p) {
  const bool dense = p.weight.tap_stride == 1 && p.weight.channel_stride == p.W;
  const bool wide = dense && p.weight.dtype == p.x.dtype && device::aligned(p.weight.data, 16);
  return {p.weight, p.bias, p.activation, wide};
}

// Windows that begin where a row of the pool does, each behind the one before.
inline bool has_dense_windows(const Problem& p) {
  const WindowPool& pool = p.state;
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  return pool.present() && pool.columns == p.W - 1 && pool.column_stride == 1 &&
         pool.channel_stride == p.W - 1 && device::aligned(pool.data, 16) &&
         pool.slot_stride * size % 16 == 0;
}

// Channels side by side in every column.
inline bool has_channel_windows(const Problem& p) {
  const WindowPool& pool = p.state;
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  return pool.present() && pool.channel_stride == 1 && device::aligned(pool.data, 16) &&
         pool.slot_stride * size % 16 == 0 && pool.column_stride * size % 16 == 0;
}

}  // namespace hyla::conv
