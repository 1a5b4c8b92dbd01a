// Sizes of a decode kernel, from what is stored, the (padded) head dim, how many warps share a ring
// and how many KV heads a CTA takes together.
#pragma once

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
  using Stored = Stored_;
  static constexpr int D = D_;
  static constexpr int kSharing = Sharing_;  // warps that read one ring, 8 query rows each
  static constexpr int kHeads = Heads_;
  static constexpr bool kQuantised = sizeof(Stored) == 1;
  // Half a unit's bytes: 16 rows of keys or of values, in groups of 8 rows x 128 bytes, swizzled.
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(Stored));
  static constexpr int kGroupBytes = (kRowBytes + 127) / 128 * 1024;
  static constexpr int kTileBytes = 2 * kGroupBytes;
  // Few warps where rows are long: each has enough bytes in flight.
  static constexpr int kWarps = kSharing == 1 && kRowBytes >= 512 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRings = kWarps / kSharing;
  static constexpr int kParts = kRings / kHeads;  // rings of one head
  static constexpr int kRingBytes = 192 << 10;
  static constexpr int kSlots = [] {
    const int fit = kRingBytes / kRings / kTileBytes / 2 * 2;  // keys and values in turns
    return fit < 24 ? fit : 24;
  }();
  static constexpr int kScaleBytes = kQuantised ? kRings * kSlots * kUnit * 4 : 0;
  static constexpr int kRows = kHeads * kSharing * kWarpRows;  // query rows of a CTA
  static constexpr int kChunk = kSharing * kWarpRows;          // of one KV head
  // Warps add up their results some columns at a time.
  static constexpr int kMergeColumns = kWarps == 8 ? (D < 64 ? D : 64) : (D < 128 ? D : 128);
  static constexpr int kMergePitch = kMergeColumns + 4;
  static constexpr int kMergeBytes = kWarps * kWarpRows * kMergePitch * 4;
  static constexpr int kSharedBytes = kRings * kSlots * kTileBytes + kScaleBytes + kMergeBytes;
  static_assert(kParts >= 1 && kSlots >= 2 && kMergeColumns % 16 == 0);
};

}  // namespace hyla::attention::decode
