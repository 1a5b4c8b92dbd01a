// A computing warpgroup: 64 packed queries against the keys of an item, tile by tile from the last.
//
//     S = Q K(last)^T; softmax                       the tile of the ragged end, always masked
//     loop:  issue S' = Q K(i-1)^T                   the tensor cores have two groups to work on
//            issue O += P V(i)                       while the other warpgroups do their softmax
//            wait for S', softmax(S')
//            wait for O,  P = S'
//     O += P V(first); divide; store
#pragma once

#include "arch/named_barrier.cuh"
#include "arch/registers.cuh"
#include "arch/tma.cuh"
#include "arch/wgmma_any.cuh"
#include "ops/attention_prefill/epilogue.cuh"
#include "ops/attention_prefill/prefill_shape.h"

namespace hyla::attention {

template <class Shape, class Element>
__device__ __forceinline__ void issue_scores(float (&s)[Shape::kKeys / 2],
                                             arch::WgmmaDescriptor queries,
                                             arch::WgmmaDescriptor keys) {
#pragma unroll
  for (int c = 0; c < Shape::kChunks; ++c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      arch::Wgmma<Element, Shape::kKeys>::ss(s, queries + (c * Shape::kRows * 128 + k * 32) / 16,
                                             keys + (c * 1024 + k * 32) / 16, (c | k) != 0);
    }
  }
}

template <class Shape, class Element>
__device__ __forceinline__ void issue_outputs(float (&o)[Shape::kDim / 2],
                                              const std::uint32_t (&p)[Shape::kKeys / 4],
                                              arch::WgmmaDescriptor values) {
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; ++k) {
    arch::Wgmma<Element, Shape::kDim>::template rs<true>(
        o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
        values + k * 2 * Shape::kGroupBytes / 16, true);
  }
}

template <class Element, int Count>
__device__ __forceinline__ void pack_probabilities(const float (&s)[Count],
                                                   std::uint32_t (&p)[Count / 2]) {
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) p[i] = packed<Element>(s[2 * i], s[2 * i + 1]);
}

// Rows of the last tile of values that lie in a group with a visible key but at or past the end of
// the sequence: somebody else's memory, which may hold NaN. Every warpgroup clears them for itself;
// they write the same zeros.
template <class Shape>
__device__ __forceinline__ void clear_tail(unsigned char* tile, int from, int to, int barrier) {
  const int thread = static_cast<int>(threadIdx.x) & 127;
  for (int i = thread; i < (to - from) * Shape::kChunks * 8; i += 128) {
    const int row = from + i / (Shape::kChunks * 8), rest = i % (Shape::kChunks * 8);
    *reinterpret_cast<uint4*>(tile + row / 8 * Shape::kGroupBytes + rest / 8 * 1024 +
                              row % 8 * 128 + rest % 8 * 16) = uint4{};
  }
  arch::fence_async_proxy();
  arch::sync_threads(barrier, 128);
}

// Of this thread's two rows, for the warp that owns them.
template <class Arguments>
__device__ __forceinline__ void note_visible_keys(const Arguments& a, const Item& item,
                                                  VisibleKeys* rows, int first_row, int quad_lane) {
  __syncwarp();
  if (quad_lane < 2) {
    const int row = first_row + 8 * quad_lane;
    const QueryRow at = query_row(item, row, a.group, a.tokens_per_tile);
    VisibleKeys keys{0, 0};
    if (at.exists) {
      const KeyRange range = visible(a.mask, item, at.token);
      keys = {static_cast<int>(range.begin), static_cast<unsigned>(range.end - range.begin)};
    }
    rows[row] = keys;
  }
  __syncwarp();
}

template <class Shape, class Element, Loading kLoading, class Arguments>
__device__ __forceinline__ void consume(const Arguments& a, TileShared<Shape>& shared, int group) {
  constexpr int kKeys = Shape::kKeys;
  constexpr bool kCopyEngine = kLoading == Loading::kBoxes || kLoading == Loading::kWidened;
  constexpr bool kScaled = kLoading == Loading::kBytes || kLoading == Loading::kWidened;
  constexpr bool kRescaleEarly = Shape::kDim == 256;  // under the products of the next scores
  const int lane = static_cast<int>(threadIdx.x) & 31, quad_lane = lane & 3;
  const int first_row = group * 64 + (static_cast<int>(threadIdx.x) >> 5 & 3) * 16 + (lane >> 2);
  const bool leader = (threadIdx.x & 127) == 0;
  const std::uint32_t query_address =
      arch::shared_address(shared.queries) + static_cast<std::uint32_t>(group) * 64 * 128;
  const std::uint32_t key_address = arch::shared_address(shared.keys);
  const std::uint32_t value_address = arch::shared_address(shared.values);
  float o[Shape::kDim / 2], s[kKeys / 2];
  std::uint32_t p[kKeys / 4];
  RingPosition<Shape::kSlots> key, value;
  int column = 0;  // of the scales of bytes

  const auto issue_keys = [&] {
    arch::wait(shared.key_ring.full[key.slot], key.parity);
    if constexpr (!kCopyEngine) arch::fence_async_proxy();
    arch::wgmma_fence();
    issue_scores<Shape, Element>(
        s, arch::strided_descriptor(query_address, 1024),
        arch::strided_descriptor(key_address + key.slot * Shape::kTileBytes, Shape::kGroupBytes));
    arch::wgmma_commit();
  };
  const auto issue_values = [&] {
    arch::wait(shared.value_ring.full[value.slot], value.parity);
    if constexpr (!kCopyEngine) arch::fence_async_proxy();
    arch::wgmma_fence();
    issue_outputs<Shape, Element>(
        o, p,
        arch::strided_descriptor(value_address + value.slot * Shape::kTileBytes, Shape::kGroupBytes,
                                 1024));
    arch::wgmma_commit();
  };
  const auto release = [&](RingBarriers<Shape::kSlots>& ring, RingPosition<Shape::kSlots>& at) {
    if (leader) arch::arrive(ring.empty[at.slot]);
    at.advance();
  };

  // Tiles of an item that has no rows for this warpgroup.
  const auto pass = [&](const Item& item) {
    if (leader) arch::arrive(shared.queries_empty);
    for (int tile = item.last_tile; tile >= item.first_tile; --tile) {
      arch::wait(shared.key_ring.full[key.slot], key.parity);
      release(shared.key_ring, key);
      if constexpr (kScaled) {
        if (kLoading == Loading::kBytes || scaled_columns(a)) {
          arch::arrive_warp(column_scales(shared).empty[column], lane);
        }
        column = column + 1 == Shape::kSlots ? 0 : column + 1;
      }
      arch::wait(shared.value_ring.full[value.slot], value.parity);
      release(shared.value_ring, value);
    }
  };

  for (std::uint32_t count = 0;; ++count) {
    arch::wait(shared.queries_full, count & 1);
    const Item& item = shared.items[count & 3];
    if (!item.exists()) return;
    if (group * kGroupRows >= min(a.tokens_per_tile, item.queries - item.token) * a.group) {
      pass(item);
      continue;
    }
    SoftmaxRow upper, lower;
#pragma unroll
    for (int i = 0; i < Shape::kDim / 2; ++i) o[i] = 0;

    int tile = item.last_tile;
    const bool sees_keys = tile >= 0;
    if (sees_keys) {
      note_visible_keys(a, item, shared.visible, first_row, quad_lane);
      const auto probabilities = [&] {
        if constexpr (kScaled) {
          if (a.keys.folds) scale_columns(s, column_scales(shared).keys[column], quad_lane);
        }
        if (a.squeeze != 0.0f) squeeze_logits(s, a.squeeze, a.factor > kLargeFactor);
        if (tile < item.full_begin || tile >= item.full_end) {
          hide_columns(s, shared.visible[first_row], shared.visible[first_row + 8],
                       tile * kKeys + 2 * quad_lane);
        }
        exponentiate<Element>(s, upper, lower, a.factor);
        if constexpr (kScaled) {
          if (a.values.folds) scale_columns(s, column_scales(shared).values[column], quad_lane);
          if (kLoading == Loading::kBytes || scaled_columns(a)) {
            arch::arrive_warp(column_scales(shared).empty[column], lane);
          }
          column = column + 1 == Shape::kSlots ? 0 : column + 1;
        }
      };

      issue_keys();
      arch::wgmma_wait<0>();
      release(shared.key_ring, key);
      probabilities();
      pack_probabilities<Element>(s, p);

      if constexpr (kLoading == Loading::kBoxes) {  // others have zeros behind the end
        const int rows = a.value_boxes.rows, to = (item.seen_end + rows - 1) / rows * rows;
        // A piece need not hold the end.
        if (item.keys < to && tile == (item.seen_end - 1) / kKeys) {
          arch::wait(shared.value_ring.full[value.slot], value.parity);
          clear_tail<Shape>(shared.values[value.slot], item.keys - tile * kKeys, to - tile * kKeys,
                            1 + group);
        }
      }

      const int first = item.first_tile;
#pragma unroll 1
      for (--tile; tile >= first; --tile) {
        issue_keys();
        if constexpr (kRescaleEarly) rescale(o, upper, lower);
        issue_values();
        arch::wgmma_wait<1>();
        release(shared.key_ring, key);
        probabilities();
        arch::wgmma_wait<0>();
        release(shared.value_ring, value);
        pack_probabilities<Element>(s, p);
        if constexpr (!kRescaleEarly) rescale(o, upper, lower);
      }
    }
    if (leader) arch::arrive(shared.queries_empty);
    if (sees_keys) {
      if constexpr (kRescaleEarly) rescale(o, upper, lower);
      issue_values();
      arch::wgmma_wait<0>();
      release(shared.value_ring, value);
    }
    if (item.slot >= 0) {
      store_piece<Shape, Element>(a, item, first_row, o, upper, lower, quad_lane);
      continue;
    }
    const QueryRow rows[2] = {query_row(item, first_row, a.group, a.tokens_per_tile),
                              query_row(item, first_row + 8, a.group, a.tokens_per_tile)};
    const float share[2] = {finish_row<Element>(a, item, rows[0], upper, quad_lane == 0),
                            finish_row<Element>(a, item, rows[1], lower, quad_lane == 0)};
    store_rows<Element>(a, item, o, rows, share, quad_lane);
  }
}

}  // namespace hyla::attention
