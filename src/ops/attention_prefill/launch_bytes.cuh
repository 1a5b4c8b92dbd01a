// Launching the prefill kernel over keys and values of one byte each, and its instances, one a
// file.
#pragma once

#include "ops/attention_prefill/byte_loader.cuh"
#include "ops/attention_prefill/launch_tile.cuh"

namespace hyla::attention {

template <class Element, int Dim>
void launch_bytes(const Queries& q, const ByteRows& keys, const ByteRows& values,
                  const TileLaunch& launch, const Context& context) {
  TileArguments<ByteRows, ByteRows> a = tile_arguments(q, keys, values, launch);
  a.key_bytes = static_cast<int>(q.head_dim);
  a.value_bytes = static_cast<int>(q.value_dim);
  a.keys.folds = keys.scale_groups == 1;
  // Probabilities times scales may leave the range of float16.
  a.values.folds = values.scale_groups == 1 && std::is_same_v<Element, __nv_bfloat16>;
  launch_shape<Element, Dim, Loading::kBytes>(q, launch, a, context);
}

using BytesLaunch = void(const Queries&, const ByteRows&, const ByteRows&, const TileLaunch&,
                         const Context&);

extern template BytesLaunch launch_bytes<__nv_bfloat16, 64>;
extern template BytesLaunch launch_bytes<__nv_bfloat16, 128>;
extern template BytesLaunch launch_bytes<__nv_bfloat16, 256>;
extern template BytesLaunch launch_bytes<__half, 64>;
extern template BytesLaunch launch_bytes<__half, 128>;
extern template BytesLaunch launch_bytes<__half, 256>;

}  // namespace hyla::attention
