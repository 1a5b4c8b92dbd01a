// The prefill kernel of NVIDIA's Hopper GPUs over KV operands of your own:
//
//     attention::RunParams params{.q = q, .out = out, .cu_seqlens = offsets};
//     attention::prefill<128>(params, my_keys, my_values, kv_heads, workspace, context);
//
// The first argument is the head dim, padded to 64, 128 or 256. Options are those of
// attention::run; `params.cache` and `params.kv_lengths` stay empty: the operands say both.
// Operands hold bfloat16 or float16, the dtype of q, in rows aligned to 16 bytes. One with tensor
// map tiles and pages of a multiple of eight tokens is loaded by the copy engine, any other row by
// row.
//
// A translation unit that calls it is compiled by nvcc for sm_90a and linked with hyla::hyla and
// hyla::kernels (which adds the kernels' sources to the include path). A call takes about the
// compile time of one kernel.
#ifndef HYLA_ATTENTION_PREFILL_H_
#define HYLA_ATTENTION_PREFILL_H_

#include <hyla/attention_queries.h>
#include <hyla/kv_operand.h>
#include <hyla/kv_operand_check.h>

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#include <ops/attention_prefill/launch_operands.cuh>
#endif

namespace hyla::attention {
namespace detail {

template <class T>
constexpr bool is_prefill_operand() {
  if constexpr (!is_addressable_operand<T>()) {
    return false;
  } else if constexpr (!std::is_same_v<typename T::dtype, bfloat16> &&
                       !std::is_same_v<typename T::dtype, float16>) {
    static_assert(kNever<T>, "prefill: operands hold bfloat16 or float16");
    return false;
  } else if constexpr (quantization_enabled<T>()) {
    static_assert(kNever<T>, "prefill: operands with scales are not taken; use attention::run");
    return false;
  } else {
    return true;
  }
}

template <int HeadDim, class K, class V>
constexpr bool takes_prefill() {
  if constexpr (HeadDim != 64 && HeadDim != 128 && HeadDim != 256) {
    static_assert(kNever<K>, "prefill: the head dim is padded to 64, 128 or 256");
    return false;
  } else if constexpr (!is_prefill_operand<K>()) {
    return false;
  } else if constexpr (!is_prefill_operand<V>()) {
    return false;
  } else if constexpr (!std::is_same_v<typename K::dtype, typename V::dtype>) {
    static_assert(kNever<K>, "prefill: keys and values have one dtype");
    return false;
  } else {
    return true;
  }
}

}  // namespace detail

// Scratch memory of a call with so many sequences: a schedule made on the device.
constexpr std::size_t prefill_workspace_bytes(std::int64_t sequences) {
  return static_cast<std::size_t>(16 + 16 * sequences + 4 * (sequences + 1));
}

template <int HeadDim, class K, class V>
void prefill(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
             Workspace workspace, const Context& context) {
  if constexpr (detail::takes_prefill<HeadDim, K, V>()) {
#if defined(__CUDACC__)
    launch_operands<HeadDim>(check_queries(params, kv_heads, context), k, v, workspace, context);
#else
    static_assert(detail::kNever<K>, "prefill: compile with nvcc for sm_90a");
#endif
  }
}

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_PREFILL_H_
