// Attention and append calls after their arguments are checked.
#pragma once

#include <hyla/attention.h>
#include <hyla/attention_queries.h>
#include <hyla/index_span.h>

#include "core/views.h"

namespace hyla::attention {

// Keys and values with tokens before heads whatever the layout was: [N or P, S, Hk, D], ragged
// [total_kv, Hk, D].
struct CacheView {
  KvCache::Kind kind = KvCache::Kind::kNone;
  TensorView k, v, k_scales, v_scales;
  IndexSpan cu_kv, page_table;
  IndexSpan kv_lengths;  // absent: whole rows

  bool quantised() const { return k_scales.present(); }
  std::int64_t page_size() const { return k.shape[1]; }
  std::int64_t capacity(std::int64_t row) const;
  std::int64_t length(std::int64_t row) const {
    return kv_lengths.present() ? kv_lengths.at(row) : capacity(row);
  }
};

struct RunProblem {
  Queries queries;
  CacheView cache;
};

struct AppendProblem {
  core::Sequences sequences;  // one row of all tokens where these have slots
  IndexSpan slots;            // [total], or absent: outer * S + token
  IndexSpan positions;        // [total] beside slots and cos
  std::int64_t heads = 0, head_dim = 0, value_dim = 0;  // value_dim 0: keys only
  TensorView k, v;
  CacheView cache;
  TensorView cos, sin;  // [positions, R/2] or absent
  bool interleaved = false;
  bool given_scales = false;  // divide by the scales of the cache, which are not written
};

RunProblem validate(const RunParams& params, const Context& context);
AppendProblem validate(const AppendParams& params, const Context& context);

}  // namespace hyla::attention
