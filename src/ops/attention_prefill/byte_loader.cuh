// Keys and values of one byte each, made 16-bit numbers on their way into shared memory: four warps,
// a quarter of the rows of every tile each. Bytes wait in registers, in three batches: while one is
// widened and stored, two are on their way, and so are the page numbers of what follows.
#pragma once

#include "arch/tma.cuh"
#include "ops/attention_prefill/arguments.cuh"
#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/widen.cuh"

namespace hyla::attention {

template <class Shape, class Arguments, class Element>
struct ByteLoader {
  static constexpr int kWarps = 4;
  static constexpr bool kOneCopy = true;
  static constexpr int kArrivals = 128;  // on a slot's `full`
  static constexpr int kRowsPerWarp = Shape::kKeys / 4;
  static constexpr int kPieces = Shape::kDim / 8;  // of a row, 8 bytes each
  static constexpr int kTogether = 32 / kPieces;   // rows a load
  static constexpr int kTileLoads = kRowsPerWarp / kTogether;
  static constexpr int kLoads = Shape::kDim == 128 ? 2 : 4;  // of a batch: what registers hold
  static constexpr int kBatches = kTileLoads / kLoads;       // of a tile
  static constexpr std::uint32_t kNoScale = 0xffffffffu;
  // The rows of a batch are some of a group of eight, or whole groups.
  static_assert(8 % (kLoads * kTogether) == 0 || kLoads * kTogether % 8 == 0);
  static_assert(kTileLoads % kLoads == 0 && kRowsPerWarp % 8 == 0);

  // Of the row that this lane looks up.
  struct RowPlace {
    int outer = -1, token = 0;
  };
  struct Batch {
    uint2 bytes[kLoads];
    std::uint32_t scale;  // of this lane's row: a float, or where the row's scales begin
    int what;             // part of the tile; + kBatches: of values

    __device__ __forceinline__ bool is_key() const { return what < kBatches; }
    __device__ __forceinline__ int part() const { return what % kBatches; }
  };

  const Arguments& a;
  TileShared<Shape>& shared;
  const int warp, lane;
  RingPosition<Shape::kSlots> key{}, value{};

  // What is fetched next: a tile of keys, then values of the tile behind it, in parts.
  struct Cursor {
    int key_tile, value_tile, part = 0;
    bool at_keys = true;
    KvRows::Entry entry{};  // of key_tile
    RowPlace newer, older;  // of the last two tiles of keys
  };

  __device__ __forceinline__ ByteLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                        int warp_index, int lane_index)
      : a(arguments), shared(memory), warp(warp_index), lane(lane_index) {}

  __device__ __forceinline__ int token_of(int tile) const {
    return tile * Shape::kKeys + warp * kRowsPerWarp + lane;
  }
  __device__ __forceinline__ bool sees(const Item& item, int token) const {
    return lane < kRowsPerWarp && token >= item.seen_begin && token < item.seen_end;
  }
  __device__ __forceinline__ KvRows::Entry ask(const Item& item, int tile) const {
    const int token = token_of(tile);
    if (!sees(item, token)) return {};
    return a.keys.entry(static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token));
  }
  // Keys and values have one page table.
  __device__ __forceinline__ RowPlace find(KvRows::Entry found, const Item& item, int tile) const {
    const int token = token_of(tile);
    if (!sees(item, token)) return {};
    const KvRows::Place place = a.keys.place(found, static_cast<std::uint32_t>(item.row),
                                             static_cast<std::uint32_t>(token));
    return {static_cast<int>(place.outer), static_cast<int>(place.token)};
  }

  __device__ __forceinline__ void fetch(Batch& batch, const ByteRows& rows, RowPlace at, int head,
                                        int head_bytes) const {
    const bool there = at.outer >= 0;
    std::uint64_t own = 0;
    batch.scale = __float_as_uint(there ? 1.0f : 0.0f);
    if (there) {
      own = reinterpret_cast<std::uint64_t>(rows.values + at.outer * rows.outer_bytes +
                                            at.token * rows.token_bytes + head * rows.head_bytes);
    }
    if (rows.scales != nullptr) {
      const auto offset = static_cast<std::uint32_t>(
          at.outer * rows.scale_outer + at.token * rows.scale_token + head * rows.scale_head);
      if (rows.scale_groups > 1) {
        batch.scale = there ? offset : kNoScale;
      } else if (there) {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(batch.scale) : "l"(rows.scales + offset));
      }
    }
    const int own_lane = arch::opaque(lane), column = own_lane % kPieces * 8;
    const int first = own_lane / kPieces + batch.part() * kLoads * kTogether;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::uint64_t from = __shfl_sync(0xffffffffu, own, first + i * kTogether);
      const int read = from != 0 && column < head_bytes;
      asm volatile(
          "{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
          " @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}"
          : "=&r"(batch.bytes[i].x), "=&r"(batch.bytes[i].y)
          : "l"(from + column), "r"(read));
    }
  }

  // False when the item has no more.
  template <class Draw>
  __device__ __forceinline__ bool fetch_next(Batch& batch, Cursor& at, const Item& item,
                                             const Draw& draw) {
    const int first = item.first_tile;
    if (at.value_tile < first) return false;
    if (at.part == 0) {
      at.at_keys = at.key_tile >= first && at.value_tile - at.key_tile < 2;
      if (at.at_keys) {
        at.older = at.newer;
        at.newer = find(at.entry, item, at.key_tile);
        --at.key_tile;
        if (at.key_tile >= first) at.entry = ask(item, at.key_tile);
      } else {
        const int left = at.value_tile - first;
        if (left == 2 || (left < 2 && at.value_tile == item.last_tile)) draw();
      }
    }
    batch.what = at.at_keys ? at.part : at.part + kBatches;
    const bool old = !at.at_keys && at.value_tile - at.key_tile == 2;
    fetch(batch, at.at_keys ? a.keys : a.values, old ? at.older : at.newer, item.head,
          at.at_keys ? a.key_bytes : a.value_bytes);
    if (++at.part == kBatches) {
      at.part = 0;
      if (!at.at_keys) --at.value_tile;
    }
    return true;
  }

  // Of this lane's piece of a row.
  __device__ __forceinline__ float scale_of(const ByteRows& rows, std::uint32_t own,
                                            int source) const {
    const std::uint32_t found = __shfl_sync(0xffffffffu, own, source);
    if (rows.scale_groups <= 1) return __uint_as_float(found);
    const int group = min(lane % kPieces / rows.scale_chunks, rows.scale_groups - 1);
    return found == kNoScale ? 0.0f : __ldg(rows.scales + found + group * rows.scale_inner);
  }

  __device__ __forceinline__ void widen(const Batch& batch, const ByteRows& rows,
                                        std::uint32_t slot) const {
    // Computed again for each batch: registers are scarce here.
    const int own_lane = arch::opaque(lane), piece = own_lane % kPieces;
    const int rows_before = batch.part() * kLoads * kTogether, below = own_lane / kPieces;
    const int first = rows_before + below, in_group = rows_before % 8 + below;
    const auto chunk = static_cast<std::uint32_t>((piece % 8 ^ in_group) << 4);
    const std::uint32_t to = slot + warp * kRowsPerWarp / 8 * Shape::kGroupBytes +
                             rows_before / 8 * Shape::kGroupBytes + piece / 8 * 1024 +
                             in_group * 128;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      constexpr auto kEight = 8u;
      const std::uint32_t row = i * kTogether;
      const float scale = scale_of(rows, batch.scale, first + i * kTogether);
      const uint4 x = rows.integers ? widened<Element, true>(batch.bytes[i], scale)
                                    : widened<Element, false>(batch.bytes[i], scale);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + row / kEight * Shape::kGroupBytes + row % kEight * 128 +
                       (chunk ^ (row % kEight << 4))),
                   "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                   : "memory");
    }
  }

  __device__ __forceinline__ void hand_over(const Batch& batch) {
    auto& ring = batch.is_key() ? shared.key_ring : shared.value_ring;
    const int slot = batch.is_key() ? key.slot : value.slot;
    if (batch.part() == 0) {
      arch::wait(ring.empty[slot], (batch.is_key() ? key.parity : value.parity) ^ 1);
    }
    widen(batch, batch.is_key() ? a.keys : a.values,
          arch::shared_address(batch.is_key() ? shared.keys : shared.values) +
              slot * Shape::kTileBytes);
    if (batch.part() < kBatches - 1) return;
    arch::fence_async_proxy();
    arch::arrive(ring.full[slot]);
    if (batch.is_key()) {
      key.advance();
    } else {
      value.advance();
    }
  }

  // In the order of use; `draw` is called when few tiles are left.
  template <class Draw>
  __device__ __forceinline__ void load(const Item& item, const Draw& draw) {
    if (item.last_tile < 0) {
      draw();
      return;
    }
    Cursor at{item.last_tile, item.last_tile};
    at.entry = ask(item, at.key_tile);
    Batch one, two, three;
    bool has_one = fetch_next(one, at, item, draw);
    bool has_two = fetch_next(two, at, item, draw);
#pragma unroll 1
    while (has_one) {
      const bool has_three = fetch_next(three, at, item, draw);
      hand_over(one);
      if (!has_two) break;
      has_one = fetch_next(one, at, item, draw);
      hand_over(two);
      if (!has_three) break;
      has_two = fetch_next(two, at, item, draw);
      hand_over(three);
    }
  }

  __device__ __forceinline__ void finish() {}
};

}  // namespace hyla::attention
