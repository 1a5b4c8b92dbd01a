// Launching the decode kernels over operands of the user's.
#pragma once

#include "ops/attention/operand_queries.cuh"
#include "ops/attention_decode/launch_shape.cuh"
#include "ops/attention_decode/operands.h"

namespace hyla::attention::decode {

// bytes: the operands have one a value.
template <int HeadDim>
Plan plan_over_operands(const Queries& queries, bool bytes, const Context& context) {
  Plan plan;
  plan.dim = HeadDim;
  if (bytes) {
    plan.sharing = many_queries(queries) ? 4 : 1;
  } else {
    plan.wide = many_queries(queries) && takes_wide(queries);
  }
  plan.ctas = std::min(processors_of(context), kMaxCtas) * (plan.wide ? kWideCtas : 1);
  set_entries(plan, queries);
  return plan;
}

// Enough for operands of any dtype.
template <int HeadDim>
std::size_t operands_workspace_bytes(const Queries& queries, const Context& context) {
  return std::max(workspace_bytes(plan_over_operands<HeadDim>(queries, true, context)),
                  workspace_bytes(plan_over_operands<HeadDim>(queries, false, context)));
}

template <int HeadDim, class K, class V>
void check_operands(const Queries& queries, const K& k) {
  check_operand_queries<HeadDim, K>(queries);
  const char* reason = refuses_queries(queries, static_cast<std::int64_t>(k.max_context_length()));
  constexpr int kMultiple = 16 / static_cast<int>(sizeof(typename K::dtype));
  const bool folds = (!quantization_enabled<K>() || one_scale<K>(queries.head_dim)) &&
                     (!quantization_enabled<V>() || one_scale<V>(queries.value_dim));
  if (reason == nullptr && !folds) reason = "takes one scale a token and head";
  if (reason == nullptr &&
      (queries.head_dim % kMultiple != 0 || queries.value_dim % kMultiple != 0)) {
    reason = "rows of a head are no multiples of 16 bytes";
  }
  if (reason != nullptr) throw Unsupported("attention.decode", {{"cuda_decode", false, reason}});
}

template <class Sizes, class K, class V>
void launch_stream_over(const OperandArguments<K, V>& arguments, const Plan& plan,
                        const Context& context) {
  launch_shape<Sizes>(attention_decode<OverOperands<Sizes, K, V>>, arguments, plan, context);
}

template <int HeadDim, class K, class V>
void launch_operands(const Queries& queries, const K& k, const V& v, const Workspace& workspace,
                     const Context& context) {
  constexpr int kSize = sizeof(typename K::dtype);
  check_operands<HeadDim, K, V>(queries, k);
  if (queries.rows == 0 || queries.q.shape[0] == 0) return;
  const Plan plan = plan_over_operands<HeadDim>(queries, kSize == 1, context);
  check_room(workspace, workspace_bytes(plan));
  OperandArguments<K, V> arguments;
  set_queries(arguments, queries, kAllRows);
  arguments.cache.kv_heads = static_cast<int>(queries.kv_heads);
  arguments.cache.k_chunks = static_cast<int>(queries.head_dim * kSize / 16);
  arguments.cache.v_chunks = static_cast<int>(queries.value_dim * kSize / 16);
  arguments.k = k;
  arguments.v = v;
  set_workspace(arguments, plan, workspace.data);
  if constexpr (kSize == 1) {
    using Stored = StoredBytes<K>;
    if (plan.sharing == 4) {
      launch_stream_over<Shape<Stored, HeadDim, 4, 1>>(arguments, plan, context);
    } else {
      launch_stream_over<Shape<Stored, HeadDim, 1, 1>>(arguments, plan, context);
    }
  } else if (plan.wide) {
    using Sizes = WideShape<DeviceElement<K>, HeadDim>;
    launch_shape<Sizes>(attention_wide<OverOperands<Sizes, K, V>>, arguments, plan, context);
  } else {
    launch_stream_over<Shape<DeviceElement<K>, HeadDim, 1, 1>>(arguments, plan, context);
  }
}

}  // namespace hyla::attention::decode
