// Operands of the user's in the place of the cache: what the kernels ask of one, asked of any two
// types that are KV operands.
#pragma once

#include <hyla/kv_operand.h>

#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

// Of the cache, only `kv_heads` and the chunks of a row are set.
template <class K, class V>
struct OperandArguments : Arguments {
  typename K::device_type k;
  typename V::device_type v;
};

template <class K, class V>
HYLA_HOST_DEVICE int key_count(const OperandArguments<K, V>& a, int row, int queries) {
  std::int64_t keys = a.k.cache_length(row);
  if (!cache_length_is_full<K>()) keys += queries > 0 ? queries : 0;
  return keys < 0 ? 0 : keys < kMostTokens ? static_cast<int>(keys) : kMostTokens;
}

// A kernel's sizes, with rows wherever two operands have them.
template <class Sizes, class K, class V>
struct OverOperands : Sizes {
  using Given = OperandArguments<K, V>;
};

}  // namespace hyla::attention::decode
