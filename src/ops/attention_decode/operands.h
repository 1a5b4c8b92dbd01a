// Operands of the user's in the place of the cache: what the kernels ask of one, asked of any two
// types that are KV operands.
#pragma once

#include <hyla/kv_operand.h>

#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

// Of the cache, only `kv_heads` and the chunks of a row are set.
template <class K, class V>
struct OperandArguments : Arguments {
  static constexpr bool kKeyScales = quantization_enabled<K>();  // one a token and head
  static constexpr bool kValueScales = quantization_enabled<V>();
  typename K::device_type k;
  typename V::device_type v;

  // Where a token's scales are; null: there is none.
  HYLA_HOST_DEVICE const float* key_scale(std::uint32_t row, int token, int head) const {
    if constexpr (kKeyScales) return k.scales_block_paged_ptr(row, token, head);
    return nullptr;
  }
  HYLA_HOST_DEVICE const float* value_scale(std::uint32_t row, int token, int head) const {
    if constexpr (kValueScales) return v.scales_block_paged_ptr(row, token, head);
    return nullptr;
  }
};

template <class K, class V>
HYLA_HOST_DEVICE int key_count(const OperandArguments<K, V>& a, int row, int queries) {
  std::int64_t keys = a.k.cache_length(row);
  if (!cache_length_is_full<K>()) keys += queries > 0 ? queries : 0;
  return keys < 0 ? 0 : keys < kMostTokens ? static_cast<int>(keys) : kMostTokens;
}

// What the kernels call the elements of an operand of one byte a value.
template <class Operand>
using StoredBytes =
    std::conditional_t<std::is_same_v<typename Operand::dtype, float8_e4m3>, E4m3, Int8>;

// A kernel's sizes, with rows wherever two operands have them.
template <class Sizes, class K, class V>
struct OverOperands : Sizes {
  using Given = OperandArguments<K, V>;
};

}  // namespace hyla::attention::decode
