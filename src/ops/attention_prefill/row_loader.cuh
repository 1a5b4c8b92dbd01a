// Keys and values row by row in 16-byte copies, for pages that do not hold groups of eight rows and
// for operands without tensor maps: four warps, of every group of eight rows two each. A slot is
// full when the copies of all their threads have landed; nobody waits for that here.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/tma.cuh"
#include "ops/attention_prefill/arguments.cuh"

namespace hyla::attention {

template <class Shape, class Arguments>
struct RowLoader {
  static constexpr int kWarps = 4;
  static constexpr bool kOneCopy = false;
  static constexpr int kSharedBytes = 0;  // behind TileShared
  static constexpr int kArrivals = 128;   // on a slot's `full`
  static constexpr int kRowsPerWarp = Shape::kKeys / 4;
  static constexpr int kPieces = Shape::kDim / 8;                    // of 16 bytes, a row
  static constexpr int kTogether = kPieces < 32 ? 32 / kPieces : 1;  // rows an instruction
  static_assert(Shape::kKeys % (4 * kTogether) == 0 && kRowsPerWarp % 2 == 0 && kTogether <= 4);
  const Arguments& a;
  TileShared<Shape>& shared;
  const int warp, lane;
  RingPosition<Shape::kSlots> key{}, value{};
  typename Arguments::KeyEntry key_entry{};  // of the next tile to copy
  typename Arguments::ValueEntry value_entry{};

  __device__ __forceinline__ RowLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                       int warp_index, int lane_index)
      : a(arguments), shared(memory), warp(warp_index), lane(lane_index) {}

  // Lane l looks up row 8 (l / 2) + 2 warp + l % 2 of a tile. The two halves of a lookup are a tile
  // apart, so that nobody waits for the page table.
  __device__ __forceinline__ int token_of(int tile) const {
    return tile * Shape::kKeys + 8 * (lane >> 1) + 2 * warp + (lane & 1);
  }
  __device__ __forceinline__ bool sees(const Item& item, int token) const {
    return lane < kRowsPerWarp && token >= item.seen_begin && token < item.seen_end;
  }
  template <class Rows>
  __device__ __forceinline__ typename Rows::Entry ask(const Rows& rows, const Item& item,
                                                      int tile) const {
    const int token = token_of(tile);
    if (tile < item.first_tile || !sees(item, token)) return {};
    return rows.entry(static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token));
  }
  // 0: the row is zeros.
  template <class Rows>
  __device__ __forceinline__ std::uintptr_t find(const Rows& rows, typename Rows::Entry entry,
                                                 const Item& item, int tile) const {
    const int token = token_of(tile);
    if (!sees(item, token)) return 0;
    return reinterpret_cast<std::uintptr_t>(
        rows.pointer(entry, static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token),
                     static_cast<std::uint32_t>(item.head)));
  }

  __device__ __forceinline__ void copy(std::uintptr_t address, int head_bytes,
                                       RingBarriers<Shape::kSlots>& ring,
                                       const unsigned char* slots,
                                       RingPosition<Shape::kSlots>& at) {
    const int piece = lane % kPieces;
    const bool all = __all_sync(0xffffffffu, lane >= kRowsPerWarp || address != 0) &&
                     head_bytes == 2 * Shape::kDim;
    // Where rows of even and of odd order of the first group go; the rest is whole groups away.
    std::uint32_t to[2];
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      const int order = kTogether == 1 ? parity : lane / kPieces;  // of the row among the warp's
      to[parity] = arch::shared_address(slots) + at.slot * Shape::kTileBytes + piece / 8 * 1024 +
                   order / 2 * Shape::kGroupBytes + arch::swizzled(2 * warp + order % 2, piece % 8);
    }
    arch::wait(ring.empty[at.slot], at.parity ^ 1);
    const auto each = [&](const auto& copy_row) {
#pragma unroll
      for (int i = 0; i < kRowsPerWarp; i += kTogether) {
        const std::uintptr_t from = __shfl_sync(0xffffffffu, address, i + lane / kPieces);
        copy_row(to[i % 2] + i / 2 * Shape::kGroupBytes, from);
      }
    };
    if (all) {
      each([&](std::uint32_t row, std::uintptr_t from) {
        arch::copy_16(row, reinterpret_cast<const char*>(from) + 16 * piece);
      });
    } else {
      const bool inside = piece * 16 < head_bytes;
      each([&](std::uint32_t row, std::uintptr_t from) {
        const bool read = from != 0 && inside;
        // Any address does where nothing is read.
        arch::copy_16(row, read ? reinterpret_cast<const char*>(from) + 16 * piece : a.out,
                      read ? 16 : 0);
      });
    }
    arch::arrive_when_copied(ring.full[at.slot]);
    at.advance();
  }

  __device__ __forceinline__ void copy_keys(std::uintptr_t address) {
    copy(address, a.key_bytes, shared.key_ring, shared.keys[0], key);
  }
  __device__ __forceinline__ void copy_values(std::uintptr_t address) {
    copy(address, a.value_bytes, shared.value_ring, shared.values[0], value);
  }

  __device__ __forceinline__ void start(const Item& item) {
    const int tile = item.last_tile;
    if (tile < 0) return;
    const auto entry = ask(a.keys, item, tile);
    key_entry = ask(a.keys, item, tile - 1);
    value_entry = ask(a.values, item, tile);
    copy_keys(find(a.keys, entry, item, tile));
  }

  // In the order of use; `draw` is called when few tiles are left.
  template <class Draw>
  __device__ __forceinline__ void load(const Item& item, const Draw& draw) {
    const int first = item.first_tile;
    int tile = item.last_tile;
    if (tile - first <= 2) draw();
    if (tile < 0) return;
#pragma unroll 1
    for (; tile > first; --tile) {
      if (tile - first == 3) draw();
      const std::uintptr_t k = find(a.keys, key_entry, item, tile - 1);
      const std::uintptr_t v = find(a.values, value_entry, item, tile);
      key_entry = ask(a.keys, item, tile - 2);
      value_entry = ask(a.values, item, tile - 1);
      copy_keys(k);
      copy_values(v);
    }
    copy_values(find(a.values, value_entry, item, tile));
  }

  __device__ __forceinline__ void finish() { arch::wait_all_copies(); }
};

}  // namespace hyla::attention
