// The decode kernels of NVIDIA's Hopper GPUs over KV operands of your own: a few queries a row,
// keys split evenly over the GPU by the lengths on the device.
//
//     attention::RunParams params{.q = q, .out = out, .cu_seqlens = offsets};
//     attention::cuda::decode<128>(params, my_keys, my_values, kv_heads, workspace, context);
//
// The first argument is the head dim, padded to 64, 128 or 256. Options are those of
// attention::run; `params.cache` and `params.kv_lengths` stay empty: the operands say both.
// Operands hold bfloat16 or float16, the dtype of q, or float8_e4m3 or int8 with float scales, one
// a token and head, or none, in rows that are multiples of 16 bytes and aligned to 16; a null
// address is a row of zeros. Rows of any length are right; for many queries attention_prefill.h is
// faster.
//
// A translation unit that calls it is compiled by nvcc for sm_90a and linked with hyla::hyla and
// hyla::kernels.
#ifndef HYLA_ATTENTION_DECODE_H_
#define HYLA_ATTENTION_DECODE_H_

#include <hyla/attention_operands.h>
#include <hyla/attention_queries.h>

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <ops/attention_decode/launch_operands.cuh>
#endif

namespace hyla::attention::cuda {

#if defined(__CUDACC__)
// Scratch memory of a call with these queries.
template <int HeadDim>
std::size_t decode_workspace_bytes(const RunParams& params, std::int64_t kv_heads,
                                   const Context& context) {
  return attention::decode::operands_workspace_bytes<HeadDim>(
      check_queries(params, kv_heads, context), context);
}
#endif

template <int HeadDim, class K, class V>
void decode(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
            Workspace workspace, const Context& context) {
  if constexpr (attention::detail::takes_operands<HeadDim, K, V>()) {
#if defined(__CUDACC__)
    attention::decode::launch_operands<HeadDim>(check_queries(params, kv_heads, context), k, v,
                                                workspace, context);
#else
    static_assert(attention::detail::kNever<K>, "decode: compile with nvcc for sm_90a");
#endif
  }
}

}  // namespace hyla::attention::cuda

#endif  // HYLA_ATTENTION_DECODE_H_
