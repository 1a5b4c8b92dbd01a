// An operand that has everything. A test changes one member or takes one away, by making it
// private.
#pragma once

#include <hyla/attention_reference.h>

#include <cstdint>
#include <string>

struct Complete {
  using device_type = Complete;
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
  static std::string get_type_name() { return "Complete"; }
};
