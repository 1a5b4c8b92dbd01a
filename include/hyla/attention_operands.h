// Which operands the fast attention kernels take (attention_prefill.h, attention_decode.h): the
// first thing that is wrong is one line of compiler output.
#ifndef HYLA_ATTENTION_OPERANDS_H_
#define HYLA_ATTENTION_OPERANDS_H_

#include <hyla/kv_operand.h>
#include <hyla/kv_operand_check.h>

#include <type_traits>

namespace hyla::attention {
namespace detail {

template <class T>
constexpr bool is_fast_operand() {
  if constexpr (!is_addressable_operand<T>()) {
    return false;
  } else if constexpr (!std::is_same_v<typename T::dtype, bfloat16> &&
                       !std::is_same_v<typename T::dtype, float16>) {
    static_assert(kNever<T>, "attention kernel: operands hold bfloat16 or float16");
    return false;
  } else if constexpr (quantization_enabled<T>()) {
    static_assert(kNever<T>,
                  "attention kernel: operands with scales are taken by attention::cuda::run alone");
    return false;
  } else {
    return true;
  }
}

template <int HeadDim, class K, class V>
constexpr bool takes_operands() {
  if constexpr (HeadDim != 64 && HeadDim != 128 && HeadDim != 256) {
    static_assert(kNever<K>, "attention kernel: the head dim is padded to 64, 128 or 256");
    return false;
  } else if constexpr (!is_fast_operand<K>()) {
    return false;
  } else if constexpr (!is_fast_operand<V>()) {
    return false;
  } else if constexpr (!std::is_same_v<typename K::dtype, typename V::dtype>) {
    static_assert(kNever<K>, "attention kernel: keys and values have one dtype");
    return false;
  } else {
    return true;
  }
}

}  // namespace detail

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_OPERANDS_H_
