// attention::run over KV operands of your own on a GPU, whatever they are: decode and prefill, any
// dims and dtypes, scales, and lists of keys for each token. The definition is
// attention_reference.h, the kernel attention_rows_kernel.h: right everywhere, not the fast one.
// attention_prefill.h and attention_decode.h are fast.
//
//     attention::RunParams params{.q = q, .out = out, .cu_seqlens = offsets};
//     attention::cuda::run(params, my_keys, my_values, kv_heads, context);
//
// A translation unit that calls it is compiled by nvcc for sm_90a and linked with hyla::hyla and
// hyla::kernels.
#ifndef HYLA_ATTENTION_CUDA_H_
#define HYLA_ATTENTION_CUDA_H_

#include <hyla/attention_reference.h>
#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operand.h>
#include <hyla/kv_operand_check.h>

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#include <hyla/attention_rows_kernel.h>
#include <ops/attention_prefill/launch_source.cuh>

namespace hyla::attention::cuda {
namespace detail {

template <class T>
__device__ inline float number(T stored) {
  return static_cast<float>(stored);
}

template <class Operand>
__device__ inline void load_eight(const Operand& operand, std::int64_t row, std::int64_t key,
                                  std::int64_t head, int d, float (&x)[8]) {
  const auto* values = operand.template block_paged_ptr<1>(static_cast<std::uint32_t>(row),
                                                           static_cast<std::uint32_t>(key),
                                                           static_cast<std::uint32_t>(head));
  for (int i = 0; i < 8; ++i) {
    x[i] = number(values[d + i]);
    if constexpr (quantization_enabled<Operand>()) {
      x[i] *= number(operand.template load_scale<1>(row, key, head, d + i)[0]);
    }
  }
}

// A row's keys, as the operands have them.
template <class K, class V>
struct RowSource {
  static constexpr bool kPerToken = false;

  typename K::device_type k;
  typename V::device_type v;

  __device__ std::int64_t key_count(const Queries& call, std::int64_t row) const {
    const auto cached = static_cast<std::int64_t>(k.cache_length(row));
    const std::int64_t count =
        cache_length_is_full<K>() ? cached : cached + rows::safe_length(call, row);
    return count < 0 ? 0 : count;
  }
  __device__ bool has(std::int64_t row, std::int64_t, std::int64_t key) const {
    const auto b = static_cast<std::uint32_t>(row), t = static_cast<std::uint32_t>(key);
    return k.template block_paged_ptr<1>(b, t, 0) != nullptr &&
           v.template block_paged_ptr<1>(b, t, 0) != nullptr;
  }
  __device__ void load_k(std::int64_t row, std::int64_t, std::int64_t key, std::int64_t head, int d,
                         float (&x)[8]) const {
    load_eight(k, row, key, head, d, x);
  }
  __device__ void load_v(std::int64_t row, std::int64_t, std::int64_t key, std::int64_t head, int d,
                         float (&x)[8]) const {
    load_eight(v, row, key, head, d, x);
  }
};

// The rows of an operand's TMA tile, found by encoded indices.
template <class Operand>
struct GatheredRows {
  typename Operand::device_type operand;
  const char* base;
  std::int64_t row_stride, head_stride, rows;  // strides in bytes

  explicit GatheredRows(const Operand& from, const Context& context)
      : operand(from), rows(from.num_kv_rows()) {
    const TmaTileSpec spec =
        from.template create_tma_tile<TensorMapSwizzle::k128B, 8, 128>(context).spec;
    base = static_cast<const char*>(spec.base);
    row_stride = spec.strides[2];
    head_stride = spec.strides[1];
  }
  __device__ bool has(std::int64_t encoded) const {
    const std::int64_t row = operand.get_tma_row(static_cast<std::int32_t>(encoded));
    return row >= 0 && row < rows;
  }
  __device__ void load(std::int64_t encoded, std::int64_t head, int d, float (&x)[8]) const {
    const std::int64_t row = operand.get_tma_row(static_cast<std::int32_t>(encoded));
    const auto* values = reinterpret_cast<const typename Operand::dtype*>(base + row * row_stride +
                                                                          head * head_stride);
    for (int i = 0; i < 8; ++i) x[i] = number(values[d + i]);
  }
};

// Each token's own list of keys; an index that is no token's of the cache is left out.
template <class K, class V>
struct ListSource {
  static constexpr bool kPerToken = true;

  GatheredRows<K> k;
  GatheredRows<V> v;
  IndexSpan lists;

  __device__ std::int64_t key_count(const Queries&, std::int64_t) const { return lists.columns; }
  __device__ bool has(std::int64_t, std::int64_t token, std::int64_t key) const {
    const std::int64_t encoded = lists.at(token, key);
    return encoded >= 0 && k.has(encoded) && v.has(encoded);
  }
  __device__ void load_k(std::int64_t, std::int64_t token, std::int64_t key, std::int64_t head,
                         int d, float (&x)[8]) const {
    k.load(lists.at(token, key), head, d, x);
  }
  __device__ void load_v(std::int64_t, std::int64_t token, std::int64_t key, std::int64_t head,
                         int d, float (&x)[8]) const {
    v.load(lists.at(token, key), head, d, x);
  }
};

}  // namespace detail

template <class K, class V>
void run(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
         const Context& context) {
  if constexpr (reference::detail::usable<K, V>()) {
    rows::launch(check_queries(params, kv_heads, context), detail::RowSource<K, V>{k, v}, context);
  }
}

// indices [total, L] int32, one list for all heads, as in reference::run_sparse.
template <class K, class V>
void run_sparse(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
                const TensorView& indices, const Context& context) {
  if constexpr (reference::detail::gatherable<K, V>()) {
    static_assert(
        !quantization_enabled<K>() && !quantization_enabled<V>(),
        "run_sparse: an encoded index finds values, not scales; the operands are not quantised");
    const Queries queries = check_queries(params, kv_heads, context);
    reference::detail::check_sparse(queries, indices, context);
    rows::launch(queries,
                 detail::ListSource<K, V>{detail::GatheredRows<K>(k, context),
                                          detail::GatheredRows<V>(v, context), IndexSpan(indices)},
                 context);
  }
}

}  // namespace hyla::attention::cuda

#else

namespace hyla::attention::cuda {

template <class K, class V>
void run(const RunParams&, const K&, const V&, std::int64_t, const Context&) {
  static_assert(attention::detail::kNever<K>, "attention::cuda::run: compile with nvcc for sm_90a");
}

}  // namespace hyla::attention::cuda

#endif

#endif  // HYLA_ATTENTION_CUDA_H_
