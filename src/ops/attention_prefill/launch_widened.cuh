// Launching the prefill kernel over keys and values that are widened in the workspace before, and
// its instances, one a file.
#pragma once

#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/launch_tile.cuh"
#include "ops/attention_prefill/launch_widening.h"
#include "ops/attention_prefill/widened_room.h"
#include "ops/attention_prefill/widened_rows.h"

namespace hyla::attention {

struct WidenedMemory {
  Region* regions = nullptr;  // then keys, values, their scales
  std::int64_t tiles = 0;     // of keys
  std::int64_t least = 0;     // packed queries of a row that is widened
};

template <class Element, int Dim>
void launch_widened(const Queries& q, const ByteRows& keys, const ByteRows& values,
                    const WidenedMemory& memory, const TileLaunch& launch, const Context& context) {
  static_assert(PrefillShape<Dim, Loading::kWidened>::kKeys % kWideningTokens == 0);
  const std::int64_t room = memory.tiles * PrefillShape<Dim, Loading::kWidened>::kKeys;
  char* at = reinterpret_cast<char*>(memory.regions) + WidenedRoom::region_bytes(q.rows);
  const auto take = [&](std::int64_t bytes) {
    char* taken = at;
    at += bytes;
    return taken;
  };
  void* key_memory = take(room * q.kv_heads * q.head_dim * 2);
  void* value_memory = take(room * q.kv_heads * q.value_dim * 2);
  auto* key_scales = reinterpret_cast<float*>(take(room * q.kv_heads * 4));
  auto* value_scales = reinterpret_cast<float*>(take(room * q.kv_heads * 4));

  WidenedRows rows;
  rows.cache = keys;
  rows.most_keys = launch.most_keys;
  rows.regions = memory.regions;
  rows.room = static_cast<int>(room);
  rows.least = memory.least;
  rows.enough = static_cast<int>((2 * launch.processors + q.kv_heads - 1) / q.kv_heads);
  rows.mask = q.mask;
  WidenedRows value_rows = rows;
  // Multiplying columns hides behind the products of heads of 256 only; narrower ones are
  // multiplied when they are widened. Probabilities times scales may leave the range of float16.
  constexpr bool kFolds = Dim == 256;
  rows.folds = kFolds && keys.scale_groups == 1;
  rows.scales = key_scales;
  value_rows.folds = kFolds && values.scale_groups == 1 && std::is_same_v<Element, __nv_bfloat16>;
  value_rows.scales = value_scales;

  TileArguments<WidenedRows, WidenedRows> a = tile_arguments(q, rows, value_rows, launch);
  const auto tensor = [&](void* data, std::int64_t dim) {
    return rows_tensor({data, q.q.dtype, room, dim, q.kv_heads, room * dim, dim, true}, Dim);
  };
  const RowsTensor key_tensor = tensor(key_memory, q.head_dim);
  const RowsTensor value_tensor = tensor(value_memory, q.value_dim);
  a.key_map = device::tensor_map(key_tensor.tensor);
  a.key_boxes = key_tensor.box;
  a.value_map = device::tensor_map(value_tensor.tensor);
  a.value_boxes = value_tensor.box;

  Widening widening;
  widening.keys.from = keys;
  widening.keys.to = key_memory;
  widening.keys.scales = rows.folds ? key_scales : nullptr;
  widening.keys.eights = static_cast<int>(q.head_dim / 8);
  widening.values.from = values;
  widening.values.to = value_memory;
  widening.values.scales = value_rows.folds ? value_scales : nullptr;
  widening.values.eights = static_cast<int>(q.value_dim / 8);
  for (WideningHalf* half : {&widening.keys, &widening.values}) {
    half->by_eights = device::Divider(static_cast<std::uint32_t>(half->eights));
  }
  widening.regions = memory.regions;
  widening.counters = a.schedule.counters;
  widening.rows = static_cast<int>(q.rows);
  widening.kv_heads = static_cast<int>(q.kv_heads);
  widening.room = rows.room;
  launch_shape<Element, Dim, Loading::kWidened>(q, launch, a, context, [&] {
    launch_widening(widening, q.q.dtype, launch.processors, context);
  });
}

using WidenedLaunch = void(const Queries&, const ByteRows&, const ByteRows&, const WidenedMemory&,
                           const TileLaunch&, const Context&);

extern template WidenedLaunch launch_widened<__nv_bfloat16, 64>;
extern template WidenedLaunch launch_widened<__nv_bfloat16, 128>;
extern template WidenedLaunch launch_widened<__nv_bfloat16, 256>;
extern template WidenedLaunch launch_widened<__half, 64>;
extern template WidenedLaunch launch_widened<__half, 128>;
extern template WidenedLaunch launch_widened<__half, 256>;

}  // namespace hyla::attention
