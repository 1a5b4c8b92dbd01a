// Where a token lies, as an operand of the user's says: what the prefill kernel asks of KvRows,
// asked of any type that is a KV operand.
#pragma once

#include <hyla/kv_operand.h>

#include <cstdint>

namespace hyla::attention {

template <class Operand>
struct OperandRows {
  // Groups of eight tokens that start at multiples of eight lie together, and tensor maps reach
  // them.
  static constexpr bool kHasGroups =
      TmaTileableOperand<Operand> && (Operand::page_size == 0 || Operand::page_size % 8 == 0);

  typename Operand::device_type operand;

  HYLA_HOST_DEVICE std::int64_t length(std::int64_t batch, std::int64_t queries) const {
    const auto cached = static_cast<std::int64_t>(operand.cache_length(batch));
    return cache_length_is_full<Operand>() ? cached : cached + queries;
  }
  HYLA_HOST_DEVICE std::uint32_t row(std::uint32_t batch, std::uint32_t token) const {
    if constexpr (kHasGroups) {
      return operand.template populate<8, 8>(batch, token).rows[0];
    } else {
      return kNoRow;
    }
  }
  // An operand finds its addresses in one step.
  struct Entry {};
  HYLA_HOST_DEVICE Entry entry(std::uint32_t, std::uint32_t) const { return {}; }
  HYLA_HOST_DEVICE const void* pointer(Entry, std::uint32_t batch, std::uint32_t token,
                                       std::uint32_t head) const {
    return operand.template block_paged_ptr<1>(batch, token, head);
  }
};

}  // namespace hyla::attention
