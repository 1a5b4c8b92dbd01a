// Tensors of tokens as TokenViews.
#pragma once

#include <hyla/tensor.h>

#include "core/views.h"

namespace hyla::core {

// [B, T, heads, dim], or ragged [total, heads, dim]. [B, heads, dim] is [B, 1, heads, dim] without
// the 1. Without `has_dim` the same shapes less the last dimension.
// Written in place, as the other views of a problem are: a struct that is copied as soon as it is
// made waits for its own stores.
inline void set_tokens(TokenView& result, const TensorView& view, bool ragged, bool has_dim) {
  result.data = view.data;
  result.dtype = view.dtype;
  int d = 0;
  if (!ragged) result.row_stride = view.strides[d++];
  const int rest = view.rank - d;
  if (rest == (has_dim ? 3 : 2)) result.token_stride = view.strides[d++];
  result.head_stride = view.strides[d++];
  if (has_dim) result.dim_stride = view.strides[d];
}

}  // namespace hyla::core
