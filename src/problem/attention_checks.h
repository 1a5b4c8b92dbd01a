// What attention and append check alike.
#pragma once

#include "core/check.h"
#include "problem/attention.h"

namespace hyla::attention {

// `shapes` knows N, and whatever of Hk, D and DV the caller has bound.
struct CacheAccess {
  core::Access values, scales;
  bool by_slots = false;  // it has no rows: no lengths, offsets or page table
};
CacheView check_cache(const KvCache& cache, const TensorView& kv_lengths, core::Shapes& shapes,
                      CacheAccess access, bool with_values, const Context& context);
void check_dims(std::string_view k_argument, std::int64_t head_dim, std::string_view v_argument,
                std::int64_t value_dim);
// The pages of keys [begin, end) of a row exist.
void check_pages(const CacheView& cache, std::int64_t row, KeyRange keys);

}  // namespace hyla::attention
