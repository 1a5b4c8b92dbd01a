// Launching the prefill kernel over operands of the user's.
#pragma once

#include "ops/attention/factors.h"
#include "ops/attention/operand_queries.cuh"
#include "ops/attention_prefill/launch_bytes.cuh"
#include "ops/attention_prefill/operand_bytes.h"

namespace hyla::attention {

// The operand's own tile of eight rows says where its memory is: (dim, heads, rows).
template <int Dim, class Operand>
RowsTensor rows_tensor(const Operand& operand, const Context& context) {
  if constexpr (OperandRows<Operand>::kHasGroups) {
    if (operand.num_kv_rows() < 1) return {};
    const TmaTileSpec spec =
        operand.template create_tma_tile<TensorMapSwizzle::k128B, 8, Dim>(context).spec;
    const auto size = static_cast<std::int64_t>(sizeof(typename Operand::dtype));
    if (spec.rank != 3 || spec.strides[1] % size != 0 || spec.strides[2] % size != 0) return {};
    constexpr bool kSixteens = Operand::page_size > 0 && Operand::page_size % 16 == 0;
    return rows_tensor({spec.base, spec.dtype, static_cast<std::int64_t>(spec.dims[2]),
                        spec.strides[2] / size, static_cast<std::int64_t>(spec.dims[1]),
                        spec.strides[1] / size, static_cast<std::int64_t>(spec.dims[0]), kSixteens},
                       Dim);
  } else {
    return {};
  }
}

// Queries of either dtype meet operands of one byte a value: a kernel each.
template <int HeadDim, class K, class V>
void launch_operand_bytes(const Queries& q, const K& k, const V& v, const TileLaunch& launch,
                          const Context& context) {
  OperandBytes<K> keys{{k}};
  OperandBytes<V> values{{v}};
  keys.sixteens = values.sixteens = q.head_dim % 16 == 0 && q.value_dim % 16 == 0;
  keys.folds = one_scale<K>(q.head_dim);
  values.folds = one_scale<V>(q.value_dim);
  if (q.q.dtype == DType::kBFloat16) {
    launch_bytes<__nv_bfloat16, HeadDim>(q, keys, values, launch, context);
  } else {
    launch_bytes<__half, HeadDim>(q, keys, values, launch, context);
  }
}

template <int HeadDim, class K, class V>
void launch_operands(const Queries& queries, const K& k, const V& v, const Workspace& workspace,
                     const Context& context) {
  check_operand_queries<HeadDim, K>(queries);
  const char* reason = tile_refuses(queries);
  if (reason == nullptr && !has_factors(queries)) reason = kNeedsFactors;
  if (reason != nullptr) {
    throw Unsupported("attention.prefill", {{"cuda_prefill", false, reason}});
  }
  if (queries.rows == 0 || queries.q.shape[0] == 0) return;
  check_room(workspace, static_cast<std::size_t>(Schedule::bytes(queries.rows)));
  TileLaunch launch;
  launch.workspace = workspace.data;
  launch.processors = processors_of(context);
  if constexpr (sizeof(typename K::dtype) == 1) {
    launch_operand_bytes<HeadDim>(queries, k, v, launch, context);
  } else {
    launch_tile<DeviceElement<K>, HeadDim>(queries, OperandRows<K>{k},
                                           rows_tensor<HeadDim>(k, context), OperandRows<V>{v},
                                           rows_tensor<HeadDim>(v, context), launch, context);
  }
}

}  // namespace hyla::attention
