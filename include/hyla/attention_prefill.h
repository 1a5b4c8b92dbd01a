// The prefill kernel of NVIDIA's Hopper GPUs over KV operands of your own:
//
//     attention::RunParams params{.q = q, .out = out, .cu_seqlens = offsets};
//     attention::prefill<128>(params, my_keys, my_values, kv_heads, workspace, context);
//
// The first argument is the head dim, padded to 64, 128 or 256. Options are those of
// attention::run; `params.cache` and `params.kv_lengths` stay empty: the operands say both.
// Operands hold bfloat16 or float16, the dtype of q, in rows aligned to 16 bytes: one with tensor
// map tiles and pages of a multiple of eight tokens is loaded by the copy engine, any other row by
// row. Or they hold float8_e4m3 or int8, in rows aligned to 16 bytes (to 8 where a head's dim is no
// multiple of 16), with float scales or without: scales_block_paged_ptr is asked for the scale of
// each token and head, or where quantization_granularity is less than the head dim, of each eight
// values.
//
// A translation unit that calls it is compiled by nvcc for sm_90a and linked with hyla::hyla and
// hyla::kernels (which adds the kernels' sources to the include path). A call takes about the
// compile time of one kernel, over operands of one byte a value of two (q in bfloat16 and float16).
#ifndef HYLA_ATTENTION_PREFILL_H_
#define HYLA_ATTENTION_PREFILL_H_

#include <hyla/attention_operands.h>
#include <hyla/attention_queries.h>

#include <cstdint>

#if defined(__CUDACC__)
#include <ops/attention_prefill/launch_operands.cuh>
#endif

namespace hyla::attention {
// Scratch memory of a call with so many sequences: a schedule made on the device.
constexpr std::size_t prefill_workspace_bytes(std::int64_t sequences) {
  return static_cast<std::size_t>(16 + 16 * sequences + 4 * (sequences + 1));
}

template <int HeadDim, class K, class V>
void prefill(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
             Workspace workspace, const Context& context) {
  if constexpr (detail::takes_operands<HeadDim, K, V>()) {
#if defined(__CUDACC__)
    launch_operands<HeadDim>(check_queries(params, kv_heads, context), k, v, workspace, context);
#else
    static_assert(detail::kNever<K>, "prefill: compile with nvcc for sm_90a");
#endif
  }
}

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_PREFILL_H_
