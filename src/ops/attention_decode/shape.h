// Sizes of a decode kernel, from what is stored, the (padded) head dim, how many warps share a ring
// and how many KV heads a CTA takes together.
#pragma once

#include <type_traits>

#include "ops/attention_decode/arguments.h"

namespace hyla::attention::decode {

struct E4m3 {
  std::uint8_t bits;
};
struct Int8 {
  std::uint8_t bits;
};

template <class Stored_, int D_, int Sharing_, int Heads_>
struct Shape {
  using Given = Arguments;
  using Stored = Stored_;
  static constexpr int D = D_;
  static constexpr int kSharing = Sharing_;  // warps that read one ring, 8 query rows each
  static constexpr int kHeads = Heads_;
  static constexpr bool kQuantised = sizeof(Stored) == 1;
  // Half a unit's bytes: 16 rows of keys or of values, in groups of 8 rows x 128 bytes, swizzled.
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(Stored));
  static constexpr int kGroupBytes = (kRowBytes + 127) / 128 * 1024;
  static constexpr int kTileKeys = kUnit;
  static constexpr bool kReadOnce = true;    // tell L2 so
  static constexpr bool kEvenItems = false;  // see Even
  // The line of units: all rows of a block of heads before those of the next, so that CTAs read the
  // heads of a token at the same time, or all heads of a row before the next row's.
  static constexpr bool kByHeads = kSharing == 1 && (!kQuantised || D == 256);
  static constexpr int kTileBytes = 2 * kGroupBytes;
  // Few warps where rows are long: each has enough bytes in flight.
  static constexpr int kWarps = kSharing == 1 && kRowBytes >= 512 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr bool kAhead = false;  // see Ahead
  static constexpr int kRings = kWarps / kSharing;
  static constexpr int kParts = kRings / kHeads;               // rings of one head
  static constexpr int kRows = kHeads * kSharing * kWarpRows;  // query rows of a CTA
  static constexpr int kChunk = kSharing * kWarpRows;          // of one KV head
  // Where warps leave what they found.
  static constexpr int kMergePitch = D + 4;
  static constexpr int kMergeBytes = kWarps * kWarpRows * kMergePitch * 4;
  // The kernel that adds up finds room on the SM, too: where registers are left. Values of one byte
  // gain from one slot more; 16-bit ones of short rows lose, where pages are small.
  static constexpr int kBudget = (kQuantised && D == 256 && kSharing == 1 ? 222 : 170) << 10;
  static constexpr bool kRoomBeside = kThreads <= 128;
  static constexpr int kSlotBytes = kTileBytes + (kQuantised ? kUnit * 4 : 0);
  static constexpr int kSlots = [] {
    const int fit = (kBudget - kMergeBytes) / kRings / kSlotBytes;
    return fit < 24 ? fit : 24;
  }();
  static constexpr int kScaleBytes = kQuantised ? kRings * kSlots * kUnit * 4 : 0;
  static constexpr int kSharedBytes = kRings * kSlots * kTileBytes + kScaleBytes + kMergeBytes;
  static_assert(kParts >= 1 && kSlots >= 2);
};

// The sizes of the kernel for more than 8 packed query rows over 16-bit caches: one warpgroup,
// whose warps fill one ring together. Two CTAs an SM hide each other's barriers.
template <class Stored_, int D_>
struct WideShape {
  using Given = Arguments;
  using Stored = Stored_;
  static constexpr int D = D_;
  static constexpr bool kQuantised = false;
  // Policies and descriptors of wgmma do not get along in uniform registers (nvcc 13.0).
  static constexpr bool kReadOnce = false;
  static constexpr int kCtas = kWideCtas;
  static constexpr bool kRoomBeside = false;
  // A segment's end costs more here than a few CTAs that have nothing to do.
  static constexpr bool kEvenItems = true;
  // Elsewhere it gains nothing, and where blocks are few, prompts of a mixture meet on the same SMs.
  static constexpr bool kByHeads = D == 128;
  static constexpr bool kAhead = false;
  static constexpr int kWarps = 4, kThreads = 128, kSharing = 4, kHeads = 1, kParts = 1;
  static constexpr int kRows = kWideRows, kChunk = kRows;
  static constexpr int kRowBytes = D * 2, kGroupBytes = D / 64 * 1024;
  static constexpr int kTileKeys = D == 256 ? 32 : 64;
  static constexpr int kTileBytes = kTileKeys * kRowBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kSlots = ((96 << 10) - kQueryBytes) / kTileBytes / 2 * 2;
  static constexpr int kSharedBytes = kQueryBytes + kSlots * kTileBytes;
  static_assert(kSlots >= 4);
};

// The last warp of a CTA fetches keys into L2 while the others plan. Calls that are short by what
// they may hold do without: more code is more time before the first copy.
template <class Sizes>
struct Ahead : Sizes {
  static constexpr bool kAhead = true;
  static constexpr int kAheadKeys = (128 << 10) / (2 * Sizes::kHeads * Sizes::kRowBytes);
};

// Operands of the user's stand in for the cache (operands.cuh)?
template <class Shape>
inline constexpr bool over_operands = !std::is_same_v<typename Shape::Given, Arguments>;

// Are there scales of keys, of values?
template <class Shape>
HYLA_HOST_DEVICE bool has_key_scales(const Arguments& a) {
  if constexpr (over_operands<Shape>) {
    return Shape::Given::kKeyScales;
  } else {
    return a.cache.k_scales != nullptr;
  }
}
template <class Shape>
HYLA_HOST_DEVICE bool has_value_scales(const Arguments& a) {
  if constexpr (over_operands<Shape>) {
    return Shape::Given::kValueScales;
  } else {
    return a.cache.v_scales != nullptr;
  }
}

// The arguments as the kernel was given them.
template <class Shape>
HYLA_HOST_DEVICE const typename Shape::Given& given(const Arguments& a) {
  return static_cast<const typename Shape::Given&>(a);
}

}  // namespace hyla::attention::decode
