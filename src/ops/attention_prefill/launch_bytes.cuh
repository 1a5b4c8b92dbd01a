// Launching the prefill kernel over keys and values of one byte each, wherever they are.
#pragma once

#include "ops/attention_prefill/byte_loader.cuh"
#include "ops/attention_prefill/launch_tile.cuh"

namespace hyla::attention {

// `folds` of keys and values says where a head has one scale.
template <class Element, int Dim, class Keys, class Values>
void launch_bytes(const Queries& q, const Keys& keys, const Values& values,
                  const TileLaunch& launch, const Context& context) {
  TileArguments<Keys, Values> a = tile_arguments(q, keys, values, launch);
  a.key_bytes = static_cast<int>(q.head_dim);
  a.value_bytes = static_cast<int>(q.value_dim);
  // Probabilities times scales may leave the range of float16.
  a.values.folds = values.folds && std::is_same_v<Element, __nv_bfloat16>;
  launch_shape<Element, Dim, Loading::kBytes>(q, launch, a, context);
}

}  // namespace hyla::attention
