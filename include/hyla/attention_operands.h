// Which operands the fast attention kernels take (attention_prefill.h, attention_decode.h): the
// first thing that is wrong is one line of compiler output.
#ifndef HYLA_ATTENTION_OPERANDS_H_
#define HYLA_ATTENTION_OPERANDS_H_

#include <hyla/kv_operand.h>
#include <hyla/kv_operand_check.h>

#include <type_traits>

namespace hyla::attention {
namespace detail {

// Scales as the kernels read them.
template <class T>
constexpr bool has_fast_scales() {
  if constexpr (!quantization_enabled<T>()) {
    return true;
  } else if constexpr (sizeof(typename T::dtype) != 1) {
    static_assert(kNever<T>, "attention kernel: operands with scales hold float8_e4m3 or int8");
    return false;
  } else if constexpr (!is_quantised_operand<T>()) {
    return false;
  } else if constexpr (!std::is_same_v<typename T::scale_dtype, float>) {
    static_assert(kNever<T>, "attention kernel: scales are float");
    return false;
  } else if constexpr (T::quantization_granularity < 8 || T::quantization_granularity % 8 != 0) {
    static_assert(kNever<T>,
                  "attention kernel: a scale is that of a multiple of eight values "
                  "(quantization_granularity)");
    return false;
  } else {
    return true;
  }
}

template <class T>
constexpr bool is_fast_operand() {
  if constexpr (!is_addressable_operand<T>()) {
    return false;
  } else if constexpr (std::is_same_v<typename T::dtype, float>) {
    static_assert(kNever<T>,
                  "attention kernel: operands hold bfloat16, float16, float8_e4m3 or int8");
    return false;
  } else {
    return has_fast_scales<T>();
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
