// A quantised operand that has everything. A test takes one member away by making it private.
#pragma once

#include "complete.h"

struct Quantised : Complete {
  static constexpr bool quantization_enabled = true;
  static constexpr int quantization_granularity = 16;
  using scale_dtype = float;
  const float* scales_block_paged_ptr(std::int64_t, std::int64_t, std::int64_t,
                                      std::int64_t = 0) const {
    return data;
  }
  template <int width>
  hyla::attention::ShortVector<float, width> load_scale(std::int64_t, std::int64_t, std::int64_t,
                                                        std::int64_t) const {
    return {};
  }
  float* scales_raw_ptr() const { return nullptr; }
  template <int BMN>
  hyla::attention::TmaTensorTile<float, hyla::attention::TileShape<1, BMN>,
                                 hyla::attention::TileShape<1, BMN>>
  create_scale_tma_tile(const hyla::Context&) const {
    return {};
  }
};
