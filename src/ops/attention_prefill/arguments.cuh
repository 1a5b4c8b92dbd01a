// What the prefill kernel is called with, and what its warps share.
#pragma once

#include <cuda.h>
#include <hyla/attention_mask.h>
#include <hyla/kv_tile.h>
#include <hyla/tensor.h>

#include <cstdint>

#include "arch/mbarrier.cuh"
#include "ops/attention_prefill/item.cuh"
#include "ops/attention_prefill/schedule.cuh"

namespace hyla::attention {

inline constexpr float kLargeFactor = 256 * 1.4426950408889634f;  // of a soft-cap

// What a box of a key or value map loads: 8 or 16 rows, whole or one 64-element chunk of them.
struct BoxShape {
  int rows = 8, chunks = 1;  // boxes of the latter kind that make a row
};

// Outputs of pieces, a slot each: sums of values [slot, kRows, Dim] and, for each row, what their
// exponents refer to and the sum of the exponentials.
struct Partials {
  float* values;
  float2* rows;

  static std::int64_t bytes(std::int64_t slots, int rows, int dim) {
    return slots * rows * (4 * dim + static_cast<std::int64_t>(sizeof(float2)));
  }
};

// Keys, Values: where tokens lie (KvRows, or OperandRows of a user's type).
template <class Keys, class Values>
struct TileArguments : ScheduleInputs {
  using KeyEntry = typename Keys::Entry;
  using ValueEntry = typename Values::Entry;
  CUtensorMap query_map;  // (D, group, tokens, KV heads)
  CUtensorMap key_map;    // see RowsTensor
  CUtensorMap value_map;
  Keys keys;
  Values values;
  Mask mask;
  bool own_schedule;  // no kernel has made one: every CTA finds its only item (own_item.cuh)
  void* out;
  float* lse;         // or null
  const void* sinks;  // or null
  std::int64_t out_token_stride, out_head_stride, lse_token_stride, lse_head_stride, sinks_stride;
  DType sinks_dtype;
  float factor;   // logits in powers of two are `factor` times the products, or times their tanh
  float squeeze;  // 0, or what products are multiplied with before that tanh, times 2 log2(e)
  int value_dim;
  Partials partials;  // of items that are cut along the keys
  BoxShape key_boxes, value_boxes;
  int key_bytes, value_bytes;  // row path: of a head
};

// What a query sees: needed at the edges only, so it does not live in registers.
struct VisibleKeys {
  int begin;
  unsigned count;
};

// Slots that a loader fills and the computing warpgroups empty, in turns.
template <int Slots>
struct RingBarriers {
  arch::Mbarrier full[Slots], empty[Slots];
};

template <int Slots>
struct RingPosition {
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == Slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Tiles must be aligned to 1024 bytes, and so must be the memory that this is put in.
template <class Shape>
struct alignas(128) TileShared {
  using Tile = unsigned char[Shape::kTileBytes];
  unsigned char queries[Shape::kQueryBytes];  // [chunk][row][128 bytes]
  Tile keys[Shape::kSlots], values[Shape::kSlots];
  RingBarriers<Shape::kSlots> key_ring, value_ring;
  arch::Mbarrier queries_full, queries_empty;
  // An item is written while the one before is loaded, and read until its outputs are stored, when
  // the one after may be under way.
  Item items[4];
  VisibleKeys visible[Shape::kRows];
};

// Caches of one byte: what the columns of scores and of probabilities are multiplied with, behind
// TileShared. A slot comes with a tile of keys and is read longer than that: it has a barrier of
// its own, on which every computing warp arrives.
template <class Shape>
struct ColumnScales {
  float keys[Shape::kSlots][Shape::kKeys], values[Shape::kSlots][Shape::kKeys];
  arch::Mbarrier empty[Shape::kSlots];
};
template <class Shape>
__device__ __forceinline__ void init_barriers(ColumnScales<Shape>& scales) {
  for (arch::Mbarrier& empty : scales.empty) arch::init(empty, 4 * Shape::kConsumers);
}
template <class Arguments>
__device__ __forceinline__ bool scaled_columns(const Arguments& a) {
  return a.keys.folds || a.values.folds;
}
template <class Shape>
__device__ __forceinline__ ColumnScales<Shape>& column_scales(TileShared<Shape>& shared) {
  return *reinterpret_cast<ColumnScales<Shape>*>(&shared + 1);
}

}  // namespace hyla::attention
