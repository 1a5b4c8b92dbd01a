// Keys and values of one byte each, made 16-bit numbers on their way into shared memory: four warps,
// a quarter of the rows of every tile each. The copy engine brings them to buffers of the warp's own,
// row by row, wherever they lie; page numbers and scales are asked for a tile ahead.
//
// A fence of the proxies waits for whatever its thread has asked of memory: copies by the thread
// itself (cp.async) in front of it would be waited for, and loads come right behind it.
#pragma once

#include "arch/tma.cuh"
#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/kernel_tile.cuh"
#include "ops/attention_prefill/widen.cuh"

namespace hyla::attention {

template <class Shape, class Arguments, class Element>
struct ByteLoader {
  static constexpr int kWarps = 4;
  static constexpr bool kOneCopy = true;
  static constexpr int kArrivals = 128;                      // on a slot's `full`
  static constexpr int kRows = Shape::kKeys / 4;             // of a warp and tile
  static constexpr int kPieces = Shape::kDim / 16;           // of a row, 16 bytes each
  static constexpr int kTogether = 32 / kPieces;             // rows a load of the warp
  static constexpr int kLoads = kRows / kTogether;           // of a tile's keys or values
  static constexpr int kAhead = Shape::kDim == 256 ? 1 : 2;  // tiles that are on their way
  static_assert(Shape::kDim >= 64 && kRows == 16);

  // Behind TileShared.
  struct Shared {
    ColumnScales<Shape> scales;
    arch::Mbarrier landed[kWarps][2][kAhead];  // keys, values
    alignas(16) unsigned char bytes[kWarps][2][kAhead][kRows * Shape::kDim];
  };
  static constexpr int kSharedBytes = static_cast<int>(sizeof(Shared));
  static __device__ __forceinline__ Shared& behind(TileShared<Shape>& memory) {
    return *reinterpret_cast<Shared*>(&memory + 1);
  }
  static __device__ __forceinline__ void init(TileShared<Shape>& memory) {
    for (int i = 0; i < kWarps * 2 * kAhead; ++i) arch::init(behind(memory).landed[0][0][i], 1);
  }

  // Where the warp's rows of a tile are.
  struct Places {
    int outer = -1, token = 0;  // of the row that this lane has looked up
    std::uint32_t there = 0;    // a bit for each row
  };

  const Arguments& a;
  TileShared<Shape>& shared;
  Shared& own;
  const int warp, lane;
  // What this lane widens: 16 bytes of the rows first_row, first_row + kTogether, ... of the warp's
  // rows. Eight lanes read and write two rows, so that they find different banks.
  const int parity, piece, first_row;
  RingPosition<Shape::kSlots> key{}, value{};
  RingPosition<kAhead> in[2]{}, out[2]{};  // keys, values
  RingPosition<ColumnScales<Shape>::kSlots> scale{};

  __device__ __forceinline__ ByteLoader(const Arguments& arguments, TileShared<Shape>& memory,
                                        int warp_index, int lane_index)
      : a(arguments),
        shared(memory),
        own(behind(memory)),
        warp(warp_index),
        lane(lane_index),
        parity(lane_index >> 2 & 1),
        piece(((lane_index & 3) | (lane_index >> 3) % (kPieces / 4) * 4) ^
              (kPieces > 4 ? 4 * parity : 0)),
        first_row(2 * ((lane_index >> 3) / (kPieces / 4)) + parity) {}

  // Lane l looks up row l of the warp's rows.
  __device__ __forceinline__ int token_of(int tile) const {
    return tile * Shape::kKeys + warp * kRows + lane;
  }
  __device__ __forceinline__ bool sees(const Item& item, int token) const {
    return lane < kRows && token >= item.seen_begin && token < item.seen_end;
  }
  __device__ __forceinline__ KvRows::Entry ask(const Item& item, int tile) const {
    const int token = token_of(tile);
    if (!sees(item, token)) return {};
    return a.keys.entry(static_cast<std::uint32_t>(item.row), static_cast<std::uint32_t>(token));
  }
  // Keys and values have one page table.
  __device__ __forceinline__ Places find(KvRows::Entry found, const Item& item, int tile) const {
    Places places;
    if (const int token = token_of(tile); sees(item, token)) {
      const KvRows::Place at = a.keys.place(found, static_cast<std::uint32_t>(item.row),
                                            static_cast<std::uint32_t>(token));
      places.outer = static_cast<int>(at.outer);
      places.token = static_cast<int>(at.token);
    }
    places.there = __ballot_sync(0xffffffffu, places.outer >= 0);
    return places;
  }

  template <bool kIsKey>
  const __device__ __forceinline__ ByteRows& rows() const {
    if constexpr (kIsKey) {
      return a.keys;
    } else {
      return a.values;
    }
  }
  template <bool kIsKey>
  __device__ __forceinline__ const float* scale_of(const Places& at, int head) const {
    const ByteRows& r = rows<kIsKey>();
    return r.scales + at.outer * r.scale_outer + at.token * r.scale_token + head * r.scale_head;
  }
  // Of keys (x) and values (y) of the lane's row; what nobody sees counts 0.
  __device__ __forceinline__ float2 row_scales(const Places& at, int head) const {
    float2 result{0, 0};
    if (at.outer < 0) return result;
    if (a.keys.folds) result.x = *scale_of<true>(at, head);
    if (a.values.folds) result.y = *scale_of<false>(at, head);
    return result;
  }

  // Lane l brings the row that it has looked up; rows that are nowhere stay as they are.
  template <bool kIsKey>
  __device__ __forceinline__ void fetch(const Places& at, int head) {
    constexpr int kKind = kIsKey ? 0 : 1;
    unsigned char* stage = own.bytes[warp][kKind][in[kKind].slot];
    arch::Mbarrier& landed = own.landed[warp][kKind][in[kKind].slot];
    in[kKind].advance();
    const ByteRows& r = rows<kIsKey>();
    const bool there = at.outer >= 0;
    const char* from =
        r.values + head * r.head_bytes + at.outer * r.outer_bytes + at.token * r.token_bytes;
    const int bytes = kIsKey ? a.key_bytes : a.value_bytes;
    if (a.keys.sixteens) {
      if (lane == 0) {
        arch::arrive_expecting(landed, static_cast<std::uint32_t>(__popc(at.there) * bytes));
      }
      __syncwarp();
      if (there) {
        arch::load_bulk(stage + lane * Shape::kDim, from, static_cast<std::uint32_t>(bytes),
                        landed);
      }
    } else {
#pragma unroll 1
      for (int i = 0; there && i < bytes; i += 8) {
        *reinterpret_cast<uint2*>(stage + lane * Shape::kDim + i) =
            *reinterpret_cast<const uint2*>(from + i);
      }
      __syncwarp();
      if (lane == 0) arch::arrive(landed);
    }
    __syncwarp();
  }

  // What has landed; what lies nowhere, or behind the end of a row, counts 0.
  template <bool kIsKey>
  __device__ __forceinline__ void read(uint4 (&bytes)[kLoads], const Places& at) {
    constexpr int kKind = kIsKey ? 0 : 1;
    RingPosition<kAhead>& from = out[kKind];
    arch::wait(own.landed[warp][kKind][from.slot], from.parity);
    const std::uint32_t address = arch::shared_address(own.bytes[warp][kKind][from.slot]) +
                                  16 * piece + first_row * Shape::kDim;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bytes[i].x), "=r"(bytes[i].y), "=r"(bytes[i].z), "=r"(bytes[i].w)
                   : "r"(address + i * kTogether * Shape::kDim)
                   : "memory");
    }
    from.advance();
    __syncwarp();  // the copy engine may write here again
    constexpr std::uint32_t kAll = (1u << kRows) - 1;
    const int width = kIsKey ? a.key_bytes : a.value_bytes;
    if (at.there == kAll && width == Shape::kDim) return;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool row = at.there >> (i * kTogether + first_row) & 1;
      if (!row || 16 * piece >= width) bytes[i].x = bytes[i].y = 0;
      if (!row || 16 * piece + 8 >= width) bytes[i].z = bytes[i].w = 0;
    }
  }

  static __device__ __forceinline__ void store(std::uint32_t to, const uint4& x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
  }
  template <class Widen>
  static __device__ __forceinline__ void store_all(const uint4 (&bytes)[kLoads], std::uint32_t to,
                                                   const Widen& widen) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = i * kTogether;  // behind the lane's first
      const std::uint32_t at = (to + row / 8 * Shape::kGroupBytes + row % 8 * 128) ^ (row % 8 << 4);
      store(at, widen(make_uint2(bytes[i].x, bytes[i].y), i, 0));
      store(at ^ 16, widen(make_uint2(bytes[i].z, bytes[i].w), i, 1));
    }
  }

  // With the scale of each eight values, one rounding.
  template <bool kIsKey, bool kIntegers>
  __device__ __forceinline__ void store_scaled(const uint4 (&bytes)[kLoads], std::uint32_t to,
                                               const Places& at, int head) const {
    const ByteRows& r = rows<kIsKey>();
    const auto own_scales =
        at.outer < 0 ? 0 : reinterpret_cast<std::uint64_t>(scale_of<kIsKey>(at, head));
    store_all(bytes, to, [&](uint2 eight, int i, int half) {
      const auto* row = reinterpret_cast<const float*>(
          __shfl_sync(0xffffffffu, own_scales, i * kTogether + first_row));
      const int group = min((2 * piece + half) / r.scale_chunks, r.scale_groups - 1);
      const float x = row == nullptr ? 0.0f : row[group * r.scale_inner];
      return widened_scaled<Element, kIntegers>(eight, x);
    });
  }

  template <bool kIsKey>
  __device__ __forceinline__ void widen(const uint4 (&bytes)[kLoads], std::uint32_t slot,
                                        const Places& at, int head) const {
    const std::uint32_t to = slot + warp * (kRows / 8) * Shape::kGroupBytes + piece / 4 * 1024 +
                             first_row * 128 + ((2 * (piece & 3) ^ first_row) << 4);
    const bool integers = a.keys.integers, plain = rows<kIsKey>().scales == nullptr;
    if (plain || rows<kIsKey>().folds) {
      if (integers) {
        store_all(bytes, to, [](uint2 x, int, int) { return widened<Element, true>(x); });
      } else {
        store_all(bytes, to, [](uint2 x, int, int) { return widened<Element, false>(x); });
      }
    } else if (integers) {
      store_scaled<kIsKey, true>(bytes, to, at, head);
    } else {
      store_scaled<kIsKey, false>(bytes, to, at, head);
    }
  }

  __device__ __forceinline__ void hand_over_keys(const uint4 (&bytes)[kLoads], const Places& at,
                                                 int head, float2 folded) {
    arch::wait(shared.key_ring.empty[key.slot], key.parity ^ 1);
    if (lane < kRows) {
      own.scales.keys[scale.slot][warp * kRows + lane] = folded.x;
      own.scales.values[scale.slot][warp * kRows + lane] = folded.y;
    }
    scale.advance();
    widen<true>(bytes, arch::shared_address(shared.keys) + key.slot * Shape::kTileBytes, at, head);
    arch::fence_async_proxy();
    arch::arrive(shared.key_ring.full[key.slot]);
    key.advance();
  }
  __device__ __forceinline__ void hand_over_values(const uint4 (&bytes)[kLoads], const Places& at,
                                                   int head) {
    arch::wait(shared.value_ring.empty[value.slot], value.parity ^ 1);
    widen<false>(bytes, arch::shared_address(shared.values) + value.slot * Shape::kTileBytes, at,
                 head);
    arch::fence_async_proxy();
    arch::arrive(shared.value_ring.full[value.slot]);
    value.advance();
  }

  // In the order of use, keys a tile ahead of values; `draw` is called when few tiles are left.
  template <class Draw>
  __device__ __forceinline__ void load(const Item& item, const Draw& draw) {
    const int first = item.first_tile, last = item.last_tile, head = item.head;
    if (last - first < 2) draw();
    if (last < 0) return;
    KvRows::Entry entry = ask(item, last);
    Places places[kAhead + 2];  // of the last tiles of keys that were fetched, the newest first
    int next = last;            // tile of keys to fetch
    const auto fetch_keys = [&] {
#pragma unroll
      for (int i = kAhead + 1; i > 0; --i) places[i] = places[i - 1];
      if (next < first) return;
      places[0] = find(entry, item, next);
      fetch<true>(places[0], head);
      --next;
    };
    const auto ask_next = [&] {
      if (next >= first) entry = ask(item, next);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      fetch_keys();
      ask_next();
      if (last - i >= first) fetch<false>(places[0], head);
    }
    float2 folded = row_scales(places[kAhead - 1], head);  // of the next keys to hand over
    // Keys of tile - 1 and values of `tile`; the last tile's keys come in front of all.
#pragma unroll 1
    for (int tile = last + 1; tile >= first; --tile) {
      uint4 bytes[kLoads];
      const bool has_keys = tile > first, has_values = tile <= last;
      if (has_keys) {
        read<true>(bytes, places[kAhead - 1]);
        fetch_keys();
        hand_over_keys(bytes, places[kAhead], head, folded);
        ask_next();
        if (tile - 1 > first) folded = row_scales(places[kAhead - 1], head);
      } else {
        fetch_keys();
      }
      if (!has_values) continue;
      if (tile - first == 2) draw();
      read<false>(bytes, places[kAhead + 1]);
      if (tile - kAhead >= first) fetch<false>(places[1], head);
      hand_over_values(bytes, places[kAhead + 1], head);
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
