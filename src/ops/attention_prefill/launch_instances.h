// The instances of launch_tile for the built-in caches, one a file: they compile side by side.
#pragma once

#include "ops/attention_prefill/kv_rows.h"
#include "ops/attention_prefill/launch_tile.cuh"

namespace hyla::attention {

using BuiltInLaunch = void(const Queries&, const KvRows&, const RowsTensor&, const KvRows&,
                           const RowsTensor&, const TileLaunch&, const Context&);

extern template BuiltInLaunch launch_tile<__nv_bfloat16, 64>;
extern template BuiltInLaunch launch_tile<__nv_bfloat16, 128>;
extern template BuiltInLaunch launch_tile<__nv_bfloat16, 256>;
extern template BuiltInLaunch launch_tile<__half, 64>;
extern template BuiltInLaunch launch_tile<__half, 128>;
extern template BuiltInLaunch launch_tile<__half, 256>;

}  // namespace hyla::attention
