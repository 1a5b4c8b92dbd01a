// Launching the decode kernels over operands of the user's.
#pragma once

#include "ops/attention/operand_queries.cuh"
#include "ops/attention_decode/launch_shape.cuh"
#include "ops/attention_decode/operands.h"

namespace hyla::attention::decode {

template <int HeadDim>
Plan plan_over_operands(const Queries& queries, const Context& context) {
  Plan plan;
  plan.dim = HeadDim;
  plan.wide = many_queries(queries) && queries.scale > 0;
  plan.ctas = std::min(processors_of(context), kMaxCtas) * (plan.wide ? kWideCtas : 1);
  set_entries(plan, queries);
  return plan;
}

template <int HeadDim, class K>
void check_operands(const Queries& queries, const K& k) {
  check_operand_queries<HeadDim, K>(queries);
  const char* reason = refuses_queries(queries, static_cast<std::int64_t>(k.max_context_length()));
  if (reason == nullptr && (queries.head_dim % 8 != 0 || queries.value_dim % 8 != 0)) {
    reason = "head dims are no multiples of 8";
  }
  if (reason != nullptr) throw Unsupported("attention.decode", {{"cuda_decode", false, reason}});
}

template <int HeadDim, class K, class V>
void launch_operands(const Queries& queries, const K& k, const V& v, const Workspace& workspace,
                     const Context& context) {
  using Element = DeviceElement<K>;
  check_operands<HeadDim>(queries, k);
  if (queries.rows == 0 || queries.q.shape[0] == 0) return;
  const Plan plan = plan_over_operands<HeadDim>(queries, context);
  check_room(workspace, workspace_bytes(plan));
  OperandArguments<K, V> arguments;
  set_queries(arguments, queries, kAllRows);
  arguments.cache.kv_heads = static_cast<int>(queries.kv_heads);
  arguments.cache.k_chunks = static_cast<int>(queries.head_dim / 8);
  arguments.cache.v_chunks = static_cast<int>(queries.value_dim / 8);
  arguments.k = k;
  arguments.v = v;
  set_workspace(arguments, plan, workspace.data);
  if (plan.wide) {
    using Sizes = WideShape<Element, HeadDim>;
    launch_shape<Sizes>(attention_wide<OverOperands<Sizes, K, V>>, arguments, plan, context);
  } else {
    using Sizes = Shape<Element, HeadDim, 1, 1>;
    launch_shape<Sizes>(attention_decode<OverOperands<Sizes, K, V>>, arguments, plan, context);
  }
}

}  // namespace hyla::attention::decode
