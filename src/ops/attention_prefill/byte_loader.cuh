// Keys and values of one byte each, made 16-bit numbers on their way into shared memory: four warps,
// a quarter of the rows of every tile each. Bytes and scales wait in a ring of shared memory, where a
// thread reads only what it has copied itself, so nobody else waits for it; page numbers are asked
// for a tile ahead.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/tma.cuh"
#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/kernel_tile.cuh"
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
  static constexpr int kLoads = 4;                      // of a batch
  static constexpr int kBatches = kTileLoads / kLoads;  // of a tile
  static constexpr int kStages = 5;                     // batches that are on their way
  // The rows of a batch are some of a group of eight, or whole groups.
  static_assert(8 % (kLoads * kTogether) == 0 || kLoads * kTogether % 8 == 0);
  static_assert(kTileLoads % kLoads == 0 && kRowsPerWarp % 8 == 0);

  struct Stage {
    uint2 bytes[kLoads][128];  // of a thread
    float scales[kLoads][128];
  };
  static constexpr int kSharedBytes = kStages * static_cast<int>(sizeof(Stage));

  // Of the row that this lane looks up.
  struct RowPlace {
    int outer = -1, token = 0;
  };

  // The order of an item's batches: keys of the last two tiles, then values of one tile and keys of
  // the next in turns.
  struct Cursor {
    int key_tile, value_tile, first, part = 0;
    bool at_keys = true;

    __device__ __forceinline__ explicit Cursor(const Item& item)
        : key_tile(item.last_tile), value_tile(item.last_tile), first(item.first_tile) {}
    __device__ __forceinline__ bool at_end() const { return value_tile < first; }
    __device__ __forceinline__ void advance() {
      if (++part < kBatches) return;
      part = 0;
      if (at_keys) {
        --key_tile;
      } else {
        --value_tile;
      }
      at_keys = key_tile >= first && value_tile - key_tile < 2;
    }
  };

  const Arguments& a;
  TileShared<Shape>& shared;
  Stage* const stages;
  const int warp, lane;
  RingPosition<Shape::kSlots> key{}, value{};
  RingPosition<kStages> in{}, out{};

  __device__ __forceinline__ ByteLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                        int warp_index, int lane_index)
      : a(arguments),
        shared(memory),
        stages(reinterpret_cast<Stage*>(&memory + 1)),
        warp(warp_index),
        lane(lane_index) {}

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

  // Of keys or values: a choice between values, not between addresses of arguments, which would have
  // to be loaded like memory.
  template <class T>
  __device__ __forceinline__ T pick(bool is_key, T ByteRows::*member) const {
    return is_key ? a.keys.*member : a.values.*member;
  }

  // With 0 of Bytes to read the destination becomes zero.
  template <int Bytes>
  static __device__ __forceinline__ void copy(const void* to, std::uint64_t from, bool read) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(arch::shared_address(to)),
                 "l"(from), "n"(Bytes), "r"(read ? Bytes : 0)
                 : "memory");
  }

  __device__ __forceinline__ void fetch(bool is_key, int part, RowPlace at, int head) {
    std::uint64_t own = 0, own_scale = 0;
    const bool scaled = a.keys.scales != nullptr;
    if (at.outer >= 0) {
      own = reinterpret_cast<std::uint64_t>(
          (is_key ? a.keys.values : a.values.values) +
          at.outer * (is_key ? a.keys.outer_bytes : a.values.outer_bytes) +
          at.token * (is_key ? a.keys.token_bytes : a.values.token_bytes) +
          head * (is_key ? a.keys.head_bytes : a.values.head_bytes));
      own_scale = reinterpret_cast<std::uint64_t>(pick(is_key, &ByteRows::scales) +
                                                  at.outer * pick(is_key, &ByteRows::scale_outer) +
                                                  at.token * pick(is_key, &ByteRows::scale_token) +
                                                  head * pick(is_key, &ByteRows::scale_head));
    }
    const int piece = lane % kPieces, first = lane / kPieces + part * kLoads * kTogether;
    const bool inside = piece * 8 < (is_key ? a.key_bytes : a.value_bytes);
    std::int64_t group = 0;
    if (pick(is_key, &ByteRows::scale_groups) > 1) {
      group = 4 * pick(is_key, &ByteRows::scale_inner) *
              min(static_cast<unsigned>(piece) /
                      static_cast<unsigned>(pick(is_key, &ByteRows::scale_chunks)),
                  static_cast<unsigned>(pick(is_key, &ByteRows::scale_groups) - 1));
    }
    Stage& stage = stages[in.slot];
    const int thread = 32 * warp + lane;
    const auto anywhere = reinterpret_cast<std::uint64_t>(a.out);
    // All shuffles are under way together.
    std::uint64_t from[kLoads], scale[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      from[i] = __shfl_sync(0xffffffffu, own, first + i * kTogether);
      if (scaled) scale[i] = __shfl_sync(0xffffffffu, own_scale, first + i * kTogether);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool read = from[i] != 0 && inside;
      copy<8>(&stage.bytes[i][thread], read ? from[i] + piece * 8 : anywhere, read);
      if (scaled) copy<4>(&stage.scales[i][thread], read ? scale[i] + group : anywhere, read);
    }
    in.advance();
  }

  template <bool kIntegers>
  static __device__ __forceinline__ void store(const uint2 (&bytes)[kLoads],
                                               const float (&scale)[kLoads], std::uint32_t to,
                                               std::uint32_t chunk) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      constexpr auto kEight = 8u;
      const std::uint32_t row = i * kTogether;
      const uint4 x = widened<Element, kIntegers>(bytes[i], scale[i]);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + row / kEight * Shape::kGroupBytes + row % kEight * 128 +
                       (chunk ^ (row % kEight << 4))),
                   "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                   : "memory");
    }
  }

  __device__ __forceinline__ void widen(int part, std::uint32_t slot) {
    const int piece = lane % kPieces, thread = 32 * warp + lane;
    const int rows_before = part * kLoads * kTogether;
    const int in_group = rows_before % 8 + lane / kPieces;
    const auto chunk = static_cast<std::uint32_t>((piece % 8 ^ in_group) << 4);
    const std::uint32_t to = slot +
                             (warp * kRowsPerWarp / 8 + rows_before / 8) * Shape::kGroupBytes +
                             piece / 8 * 1024 + in_group * 128;
    const Stage& stage = stages[out.slot];
    const bool scaled = a.keys.scales != nullptr;  // values alike
    uint2 bytes[kLoads];
    float scale[kLoads];
    // In front of all stores, which the compiler does not do by itself.
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      scale[i] = 1.0f;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(bytes[i].x), "=r"(bytes[i].y)
                   : "r"(arch::shared_address(&stage.bytes[i][thread])));
      if (scaled) {
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(scale[i])
                     : "r"(arch::shared_address(&stage.scales[i][thread])));
      }
    }
    if (a.keys.integers) {
      store<true>(bytes, scale, to, chunk);
    } else {
      store<false>(bytes, scale, to, chunk);
    }
    out.advance();
  }

  __device__ __forceinline__ void hand_over(const Cursor& at) {
    auto& ring = at.at_keys ? shared.key_ring : shared.value_ring;
    const int slot = at.at_keys ? key.slot : value.slot;
    if (at.part == 0) arch::wait(ring.empty[slot], (at.at_keys ? key.parity : value.parity) ^ 1);
    widen(at.part, arch::shared_address(at.at_keys ? shared.keys : shared.values) +
                       slot * Shape::kTileBytes);
    if (at.part < kBatches - 1) return;
    arch::fence_async_proxy();
    arch::arrive(ring.full[slot]);
    if (at.at_keys) {
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
    Cursor ahead(item), at(item);
    KvRows::Entry entry = ask(item, ahead.key_tile);
    RowPlace newer, older;  // of the last two tiles of keys
#pragma unroll 1
    for (int count = 0; !at.at_end(); ++count) {
      if (!ahead.at_end()) {
        if (ahead.part == 0 && ahead.at_keys) {
          older = newer;
          newer = find(entry, item, ahead.key_tile);
          if (ahead.key_tile > ahead.first) entry = ask(item, ahead.key_tile - 1);
        }
        if (ahead.part == 0 && !ahead.at_keys) {
          const int left = ahead.value_tile - ahead.first;
          if (left == 2 || (left < 2 && ahead.value_tile == item.last_tile)) draw();
        }
        const bool old = !ahead.at_keys && ahead.value_tile - ahead.key_tile == 2;
        fetch(ahead.at_keys, ahead.part, old ? older : newer, item.head);
        ahead.advance();
      }
      arch::commit_copies();  // an empty group counts too
      if (count < kStages - 1) continue;
      arch::wait_copies<kStages - 1>();
      hand_over(at);
      at.advance();
    }
  }

  __device__ __forceinline__ void finish() {}
};

template <class Shape, class Element>
struct LoaderOf<Loading::kBytes, Shape, Element> {
  template <class Arguments>
  using type = ByteLoader<Shape, Arguments, Element>;
};

}  // namespace hyla::attention
