// An operand that has everything. A test changes one member or takes one away, by making it
// private.
#pragma once

#include <hyla/attention_reference.h>

#include <cstdint>
#include <string>

// What every operand says of its rows.
template <class Element>
struct Rows {
  const Element* data = nullptr;
  template <int tile_size>
  const Element* block_paged_ptr(std::uint32_t, std::uint32_t token, std::uint32_t,
                                 std::uint32_t head_dim = 0) const {
    return data + token * 16 + head_dim;
  }
  std::int64_t cache_length(std::int64_t) const { return 4; }
  std::uint32_t max_context_length() const { return 4; }
  std::uint32_t row_idx(std::uint32_t, std::uint32_t token) const { return token; }
  static std::string get_type_name() { return "Rows"; }
};

template <class Element>
struct CompleteOf : Rows<Element> {
  using device_type = CompleteOf;
  using dtype = Element;
  static constexpr int page_size = 0;
};
using Complete = CompleteOf<float>;
