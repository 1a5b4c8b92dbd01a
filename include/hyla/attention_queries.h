// The half of an attention call that does not depend on where keys and values live, checked.
#ifndef HYLA_ATTENTION_QUERIES_H_
#define HYLA_ATTENTION_QUERIES_H_

#include <hyla/attention.h>
#include <hyla/attention_mask.h>
#include <hyla/index_span.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::attention {

struct Queries {
  std::int64_t rows = 0;      // N
  IndexSpan cu_seqlens;       // [N + 1], or
  IndexSpan starts, lengths;  // [N] each
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  TensorView q;      // [total, Hq, D]
  TensorView out;    // [total, Hq, DV]
  TensorView lse;    // [total, Hq] or absent
  TensorView sinks;  // [Hq] or absent
  Mask mask;
  double scale = 0, softcap = 0;

  HYLA_HOST_DEVICE std::int64_t begin(std::int64_t row) const {
    return cu_seqlens.present() ? cu_seqlens.at(row) : starts.at(row);
  }
  HYLA_HOST_DEVICE std::int64_t length(std::int64_t row) const {
    return cu_seqlens.present() ? cu_seqlens.at(row + 1) - cu_seqlens.at(row) : lengths.at(row);
  }
  // What any query of a row with `keys` keys sees, this call's tokens included.
  HYLA_HOST_DEVICE KeyRange seen(std::int64_t row, std::int64_t keys) const {
    const std::int64_t count = length(row);
    if (count == 0) return {};
    return {mask.visible(keys - count, keys).begin, mask.visible(keys - 1, keys).end};
  }
};

// Checks a call whose keys and values are operands: params.cache and params.kv_lengths are absent.
// The number of KV heads is the one thing that the tensors do not say.
HYLA_API Queries check_queries(const RunParams& params, std::int64_t kv_heads,
                               const Context& context = {});

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_QUERIES_H_
