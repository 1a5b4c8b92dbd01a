// A quantised operand that has everything. A test takes one member away by making it private.
#pragma once

#include <hyla/attention_reference.h>

#include <cstdint>
#include <string>

struct Quantised {
  using device_type = Quantised;
  using dtype = float;
  static constexpr int page_size = 0;
  const float* data = nullptr;
  template <int tile_size>
  const float* block_paged_ptr(std::uint32_t, std::uint32_t token, std::uint32_t,
                               std::uint32_t head_dim = 0) const {
    return data + token * 16 + head_dim;
  }
  std::int64_t cache_length(std::int64_t) const { return 4; }
  std::uint32_t max_context_length() const { return 4; }
  std::uint32_t row_idx(std::uint32_t, std::uint32_t token) const { return token; }
  static std::string get_type_name() { return "Quantised"; }
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
