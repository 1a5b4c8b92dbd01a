// Keys and values of one byte each, made 16-bit numbers on their way into shared memory: four
// warps, of every group of eight rows two each. A thread copies what it will widen to a place of
// its own in shared memory, a tile ahead, so that pages of any size are alike and threads need not
// wait for each other; page numbers and scales are asked for earlier still.
//
// A fence of the proxies waits for whatever its thread has asked of memory. Here that would be the
// next bytes, so the computing warps have the fence, behind their wait for the slot.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/tma.cuh"
#include "ops/attention_prefill/kernel_tile.cuh"
#include "ops/attention_prefill/widen.cuh"

namespace hyla::attention {

template <class Shape, class Arguments, class Element>
struct ByteLoader {
  static constexpr int kWarps = 4;
  static constexpr bool kOneCopy = true;
  static constexpr int kArrivals = kWarps;                   // on a slot's `full`
  static constexpr int kRows = Shape::kKeys / 4;             // of a warp and tile
  static constexpr int kPieces = Shape::kDim / 16;           // of a row, 16 bytes each
  static constexpr int kGroups = 16 / kPieces;               // of eight rows that a load spans
  static constexpr int kLoads = Shape::kKeys / 8 / kGroups;  // of a tile's keys or values
  static constexpr int kBatch = kLoads / 2;                  // loads that wait together
  static_assert(Shape::kKeys % (8 * kGroups) == 0 && kLoads % 2 == 0 && kRows <= 32);
  using Batch = uint4[kBatch];

  // Behind TileShared. Tiles of keys and of values in their order take the two halves in turns.
  struct Shared {
    ColumnScales<Shape> scales;
    alignas(16) uint4 bytes[2][kLoads][128];
  };
  static constexpr int kSharedBytes = static_cast<int>(sizeof(Shared));
  static __device__ __forceinline__ void init(TileShared<Shape>& memory) {
    init_barriers(column_scales(memory));
  }

  using Keys = decltype(Arguments::keys);
  using Entry = typename Arguments::KeyEntry;
  using Spot = typename Keys::Spot;  // of the row that a lane has looked up, in keys and values

  const Arguments& a;
  TileShared<Shape>& shared;
  const int warp, lane;
  // What this lane widens: 16 bytes of a row of every kGroups-th group. Eight lanes write two rows,
  // so that they find different banks.
  const int piece, group, parity;
  RingPosition<Shape::kSlots> key{}, value{};
  const std::uint32_t own;  // this thread's places
  int turn = 0;             // which half is widened
  int batch_row = 0;        // the item's
  Batch bytes[2];           // of the tile that is widened; the first one of the next

  __device__ __forceinline__ ByteLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                        int warp_index, int lane_index)
      : a(arguments),
        shared(memory),
        warp(warp_index),
        lane(lane_index),
        piece((lane_index & 3) | (lane_index >> 3) % (kPieces / 4) * 4),
        group((lane_index >> 3) / (kPieces / 4)),
        parity(lane_index >> 2 & 1),
        own(arch::shared_address(reinterpret_cast<Shared*>(&memory + 1)->bytes) +
            16 * (32 * warp_index + lane_index)) {}

  // Lane l looks up row 8 (l / 2) + 2 warp + l % 2 of a tile.
  __device__ __forceinline__ int row_of_lane() const {
    return 8 * (lane >> 1) + 2 * warp + (lane & 1);
  }
  // The lane that has looked up the row of this lane's load i.
  __device__ __forceinline__ int finder(int i) const { return 2 * (i * kGroups + group) + parity; }
  __device__ __forceinline__ bool sees(const Item& item, int token) const {
    return lane < kRows && token >= item.seen_begin && token < item.seen_end;
  }
  __device__ __forceinline__ Entry ask(const Item& item, int tile) const {
    const int token = tile * Shape::kKeys + row_of_lane();
    if (tile < item.first_tile || !sees(item, token)) return {};
    return a.keys.entry(static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token));
  }
  __device__ __forceinline__ Spot find(Entry found, const Item& item, int tile) const {
    const int token = tile * Shape::kKeys + row_of_lane();
    if (tile < item.first_tile || !sees(item, token)) return {};
    return a.keys.find(found, item.row, token);
  }

  template <bool kIsKey>
  const __device__ __forceinline__ auto& rows() const {
    if constexpr (kIsKey) {
      return a.keys;
    } else {
      return a.values;
    }
  }
  // Of keys (x) and values (y) of the lane's row; what nobody sees counts 0.
  __device__ __forceinline__ float2 row_scales(const Spot& at, int head) const {
    float2 result{0, 0};
    if (!at.somewhere()) return result;
    if (a.keys.folds) result.x = a.keys.scale(at, batch_row, head);
    if (a.values.folds) result.y = a.values.scale(at, batch_row, head);
    return result;
  }

  // What is loaded next: the row that this lane has found, 0 for zeros, and its bytes.
  struct Source {
    std::uint64_t row = 0;
    int bytes = 0;
  };
  template <bool kIsKey>
  __device__ __forceinline__ Source source(const Spot& at, int head) const {
    Source from;
    from.bytes = kIsKey ? a.key_bytes : a.value_bytes;
    if (at.somewhere()) from.row = rows<kIsKey>().address(at, batch_row, head);
    return from;
  }

  __device__ __forceinline__ std::uint32_t place_of(int half, int batch, int i) const {
    return own + 16 * 128 * ((half * 2 + batch) * kBatch + i);
  }
  // What lies nowhere, or behind the end of a row, becomes 0.
  template <bool kAnyway>
  __device__ __forceinline__ void fetch(int half, int batch, const Source& from) const {
    const bool all =
        __all_sync(0xffffffffu, lane >= kRows || from.row != 0) && from.bytes == Shape::kDim;
    const int left = max(from.bytes - 16 * piece, 0);
    const auto each = [&](const auto& copy) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::uint64_t row =
            __shfl_sync(0xffffffffu, from.row, finder(batch * kBatch + i)) + 16 * piece;
        copy(place_of(half, batch, i), reinterpret_cast<const char*>(row), row >= Shape::kDim);
      }
    };
    if (kAnyway && !a.keys.sixteens) {
      each([&](std::uint32_t to, const char* row, bool there) {
        copy_8(to, there ? row : a.out, there && left >= 8);
        copy_8(to + 8, there ? row + 8 : a.out, there && left >= 16);
      });
    } else if (all) {
      each([&](std::uint32_t to, const char* row, bool) { arch::copy_16(to, row); });
    } else {
      each([&](std::uint32_t to, const char* row, bool there) {
        const bool read = there && left >= 16;
        arch::copy_16(to, read ? row : a.out, read ? 16 : 0);
      });
    }
    arch::commit_copies();
  }
  // As arch::copy_16, of 8 bytes.
  static __device__ __forceinline__ void copy_8(std::uint32_t to, const void* from, bool read) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
                 "r"(read ? 8 : 0)
                 : "memory");
  }
  // Two batches and more may be on their way behind the one that is read.
  __device__ __forceinline__ void read(int half, int batch) {
    arch::wait_copies<2>();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      uint4& x = bytes[batch][i];
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(place_of(half, batch, i))
                   : "memory");
    }
  }

  static __device__ __forceinline__ void store(std::uint32_t to, const uint4& x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
  }
  template <class Widen>
  static __device__ __forceinline__ void store_all(const Batch& from, std::uint32_t to,
                                                   const Widen& widen) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int group = i * kGroups * Shape::kGroupBytes;
      store(to + group, widen(make_uint2(from[i].x, from[i].y), i, 0));
      store((to ^ 16) + group, widen(make_uint2(from[i].z, from[i].w), i, 1));
    }
  }

  // With the scale of each eight values, one rounding.
  template <bool kIsKey, bool kIntegers>
  __device__ __forceinline__ void store_scaled(const Batch& from, std::uint32_t to, int first,
                                               const Spot& at, int head) const {
    const auto& r = rows<kIsKey>();
    const std::uint64_t own_scales = r.find_scales(at, head);
    store_all(from, to, [&](uint2 eight, int i, int half) {
      const std::uint64_t row = __shfl_sync(0xffffffffu, own_scales, finder(first + i));
      return widened_scaled<Element, kIntegers>(
          eight, r.scale_of_eight(row, batch_row, head, 2 * piece + half));
    });
  }

  template <bool kIsKey, bool kAnyway>
  __device__ __forceinline__ void widen(const Batch& from, std::uint32_t slot, int first,
                                        const Spot& at, int head) const {
    const int row = 2 * warp + parity;  // of a group
    const std::uint32_t to = slot + (first * kGroups + group) * Shape::kGroupBytes +
                             piece / 4 * 1024 + row * 128 + ((2 * (piece & 3) ^ row) << 4);
    const bool integers = a.keys.integers, plain = !rows<kIsKey>().scaled();
    if (!kAnyway || plain || rows<kIsKey>().folds) {
      if (integers) {
        store_all(from, to, [](uint2 x, int, int) { return widened<Element, true>(x); });
      } else {
        store_all(from, to, [](uint2 x, int, int) { return widened<Element, false>(x); });
      }
    } else if (integers) {
      store_scaled<kIsKey, true>(from, to, first, at, head);
    } else {
      store_scaled<kIsKey, false>(from, to, first, at, head);
    }
  }

  // A batch is read while the one before is widened, whose place the tile after the next one takes.
  template <bool kIsKey, bool kAnyway>
  __device__ __forceinline__ void widen_tile(const unsigned char* slot, const Spot& at, int head,
                                             const Source& next) {
    const std::uint32_t to = arch::shared_address(slot);
    read(turn, 1);
    widen<kIsKey, kAnyway>(bytes[0], to, 0, at, head);
    fetch<kAnyway>(turn, 0, next);
    read(turn ^ 1, 0);
    widen<kIsKey, kAnyway>(bytes[1], to, kBatch, at, head);
    fetch<kAnyway>(turn, 1, next);
    turn ^= 1;
  }

  template <bool kAnyway>
  __device__ __forceinline__ void hand_over_keys(const Spot& at, int head, float2 folded,
                                                 const Source& next) {
    ColumnScales<Shape>& scales = column_scales(shared);
    arch::wait(shared.key_ring.empty[key.slot], key.parity ^ 1);
    widen_tile<true, kAnyway>(shared.keys[key.slot], at, head, next);
    arch::wait(scales.empty[key.slot], key.parity ^ 1);
    if (lane < kRows) {
      scales.keys[key.slot][row_of_lane()] = folded.x;
      scales.values[key.slot][row_of_lane()] = folded.y;
    }
    arch::arrive_warp(shared.key_ring.full[key.slot], lane);
    key.advance();
  }
  template <bool kAnyway>
  __device__ __forceinline__ void hand_over_values(const Spot& at, int head, const Source& next) {
    arch::wait(shared.value_ring.empty[value.slot], value.parity ^ 1);
    widen_tile<false, kAnyway>(shared.values[value.slot], at, head, next);
    arch::arrive_warp(shared.value_ring.full[value.slot], lane);
    value.advance();
  }

  // In the order of use, keys a tile ahead of values; `draw` is called when few tiles are left.
  template <bool kAnyway, class Draw>
  __device__ __forceinline__ void load_tiles(const Item& in_memory, const Draw& draw) {
    const Item item = in_memory;  // shared memory answers slowly under the products
    const int first = item.first_tile, last = item.last_tile, head = item.head;
    batch_row = item.row;
    Entry entry = ask(item, last - 1);
    Spot now = find(ask(item, last), item, last), before{};  // of tile - 1 and of `tile`
    Spot next = find(entry, item, last - 1);                 // of tile - 2
    entry = ask(item, last - 2);
    const Source start[2] = {source<true>(now, head),
                             last > first ? source<true>(next, head) : source<false>(now, head)};
#pragma unroll
    for (int i = 0; i < 4; ++i) fetch<kAnyway>(turn ^ i / 2, i % 2, start[i / 2]);
    read(turn, 0);
    float2 folded = row_scales(now, head);  // of the next keys to hand over
    // Keys of tile - 1 and values of `tile`; the last tile's keys come in front of all. What is
    // widened now says what is fetched: the tile of keys or values after the next in that order.
#pragma unroll 1
    for (int tile = last + 1; tile >= first; --tile) {
      if (tile <= last) {
        next = find(entry, item, tile - 2);
        entry = ask(item, tile - 3);
      }
      if (tile > first) {
        Source from{};
        if (tile > last ? last > first : tile - 1 == first) {
          from = source<false>(now, head);
        } else if (tile <= last) {
          from = source<true>(next, head);
        }
        hand_over_keys<kAnyway>(now, head, folded, from);
        folded = row_scales(next, head);
      }
      if (tile <= last) {
        if (tile - first == 2) draw();
        Source from{};
        if (tile - 1 > first) from = source<false>(now, head);
        hand_over_values<kAnyway>(before, head, from);
      }
      before = now;
      now = next;
    }
  }

  // Rows that can be loaded 16 bytes at a time and widened as they are have code of their own,
  // whose registers suffice.
  template <class Draw>
  __device__ __forceinline__ void load(const Item& item, const Draw& draw) {
    if (item.last_tile - item.first_tile < 2) draw();
    if (item.last_tile < 0) return;
    const bool as_they_are =
        (!a.keys.scaled() || a.keys.folds) && (!a.values.scaled() || a.values.folds);
    if (a.keys.sixteens && as_they_are) {
      load_tiles<false>(item, draw);
    } else {
      load_tiles<true>(item, draw);
    }
  }

  __device__ __forceinline__ void finish() { arch::wait_all_copies(); }
};

template <class Shape, class Element>
struct LoaderOf<Loading::kBytes, Shape, Element> {
  template <class Arguments>
  using type = ByteLoader<Shape, Arguments, Element>;
};

}  // namespace hyla::attention
