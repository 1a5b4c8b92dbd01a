// Where a token of one byte a value lies and what its scales are, as an operand of the user's says:
// what the loader of bytes asks of ByteRows, asked of any type that is a KV operand.
#pragma once

#include "ops/attention_prefill/operand_rows.h"

namespace hyla::attention {

// Keys and values need not lie alike: each operand is asked for the token.
struct OperandSpot {
  int token = -1;

  HYLA_HOST_DEVICE bool somewhere() const { return token >= 0; }
};

template <class Operand>
struct OperandBytes : OperandRows<Operand> {
  using Entry = typename OperandRows<Operand>::Entry;
  static constexpr bool kHasGroups = false;
  static constexpr bool integers = std::is_same_v<typename Operand::dtype, std::int8_t>;

  bool sixteens = false;  // as ByteRows has them
  bool folds = false;

  static HYLA_HOST_DEVICE constexpr bool scaled() { return quantization_enabled<Operand>(); }

  using Spot = OperandSpot;
  HYLA_HOST_DEVICE Spot find(Entry, int, int token) const { return {token}; }
  // 0: there is no such page.
  HYLA_HOST_DEVICE std::uint64_t address(const Spot& at, int batch, int head) const {
    return reinterpret_cast<std::uint64_t>(this->pointer({}, static_cast<std::uint32_t>(batch),
                                                         static_cast<std::uint32_t>(at.token),
                                                         static_cast<std::uint32_t>(head)));
  }
  HYLA_HOST_DEVICE float scale(const Spot& at, int batch, int head) const {
    return scale_at(batch, at.token, head, 0);
  }
  HYLA_HOST_DEVICE std::uint64_t find_scales(const Spot& at, int) const {
    return static_cast<std::uint64_t>(at.token + 1);
  }
  HYLA_HOST_DEVICE float scale_of_eight(std::uint64_t found, int batch, int head, int eight) const {
    return found == 0 ? 0.0f : scale_at(batch, static_cast<int>(found) - 1, head, 8 * eight);
  }

 private:
  HYLA_HOST_DEVICE float scale_at(int batch, int token, int head, int d) const {
    if constexpr (scaled()) {
      const float* found = this->operand.scales_block_paged_ptr(batch, token, head, d);
      return found == nullptr ? 0.0f : *found;
    } else {
      return 1.0f;
    }
  }
};

}  // namespace hyla::attention
