// What all GDN operations have in common once their arguments are checked: plain data that an
// implementation may pass to a kernel by value.
#pragma once

#include <hyla/gdn.h>

#include "core/views.h"
#include "problem/norm.h"

namespace hyla::gdn {

struct GateView {
  Gate::Kind kind = Gate::Kind::kNone;
  core::TokenView value;            // [.., heads], dim_stride unused
  core::VectorView A_log, dt_bias;  // [heads], kRaw
};

struct BetaView {
  Beta::Kind kind = Beta::Kind::kNone;
  core::TokenView value;
};

// [slots, heads, K, V] or [slots, heads, V, K]: the layout is in the strides.
struct PoolView {
  void* data = nullptr;
  DType dtype = DType::kNone;
  std::int64_t slots = 0;
  std::int64_t slot_stride = 0, head_stride = 0, k_stride = 0, v_stride = 0;

  HYLA_HOST_DEVICE bool present() const { return dtype != DType::kNone; }
};

using NormView = norm::GateView;

struct Problem {
  core::Sequences sequences;  // decode: one token a row
  std::int64_t q_heads = 0, k_heads = 0, v_heads = 0;
  std::int64_t heads = 0;  // of outputs, states and gates: max(q_heads, v_heads)
  std::int64_t K = 0, V = 0;
  core::TokenView q, k, v, out;
  GateView gate;
  BetaView beta;
  PoolView initial;  // where rows start; absent: from zero
  PoolView final;    // where final states go; absent: nowhere
  core::Slots slots;
  StateLayout layout = StateLayout::kVK;
  double scale = 0;
  bool l2norm = false;
  double l2norm_eps = 0;
  NormView norm;
};

}  // namespace hyla::gdn
