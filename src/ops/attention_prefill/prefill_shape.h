// Sizes of the prefill kernel: what one CTA holds of queries, keys and values.
#pragma once

namespace hyla::attention {

// How keys and values reach shared memory.
enum class Loading {
  kBoxes,    // by the copy engine, groups of eight rows
  kRows,     // 16 bytes at a time
  kBytes,    // one byte a value in the cache: widened on the way
  kWidened,  // as kBoxes, of what was widened before; with scales
};

inline constexpr int kGroupRows = 64;  // queries of a computing warpgroup

// The memory of a tile of keys or values is groups of eight rows, [group][64-element chunk][8][128
// bytes], so that a page of any multiple of eight rows can be copied into it group by group.
template <int Dim, int Consumers, int Keys, int Slots, int ConsumerRegisters, int ProducerRegisters>
struct TileSizes {
  static constexpr int kDim = Dim;
  static constexpr int kConsumers = Consumers;  // warpgroups, 64 rows of queries each
  static constexpr int kRows =
      kGroupRows * Consumers;           // queries of a tile, heads of a group packed
  static constexpr int kKeys = Keys;    // of a tile
  static constexpr int kSlots = Slots;  // tiles of keys in flight, and as many of values
  static constexpr int kConsumerRegisters = ConsumerRegisters;
  static constexpr int kProducerRegisters = ProducerRegisters;
  static constexpr int kThreads = 128 * (Consumers + 1);
  static constexpr int kChunks = Dim / 64;
  static constexpr int kGroupBytes = kChunks * 1024;
  static constexpr int kTileBytes = Keys * Dim * 2;
  static constexpr int kQueryBytes = kRows * Dim * 2;
  static_assert(Dim % 64 == 0 && Keys % 16 == 0 && Keys / 8 <= 32);
  static_assert(kTileBytes % 1024 == 0, "wgmma descriptors step inside swizzle atoms");
  static_assert(Slots >= 2, "two tiles of keys are in use while the first values are waited for");
};

// 256: shared memory is full (Q 64 KB, four tiles of 40 KB); the softmax of one warpgroup hides
// behind the products of the other. 128, 64: exponentials weigh more, and a third warpgroup hides
// them where a larger tile of two does not (measured: 192 x 80 11 % ahead of 128 x 128). At 64 a
// tile of 128 keys is 6 % ahead of one of 80, but leaves too few registers for loading rows.
// Bytes that are widened leave the loader's threads little else to do: tiles of 64 keys give them
// the registers to hold what is on its way.
template <int Dim, Loading kLoading>
struct PrefillShapeOf;
template <Loading kLoading>
struct PrefillShapeOf<256, kLoading> {
  using type = TileSizes<256, 2, 80, 2, 224, 56>;
};
template <Loading kLoading>
struct PrefillShapeOf<128, kLoading> {
  using type = TileSizes<128, 3, 80, 3, 152, 56>;
};
template <>
struct PrefillShapeOf<64, Loading::kBoxes> {
  using type = TileSizes<64, 3, 128, 3, 160, 32>;
};
template <>
struct PrefillShapeOf<128, Loading::kWidened> {
  using type = TileSizes<128, 3, 80, 3, 160, 32>;
};
template <>
struct PrefillShapeOf<64, Loading::kWidened> : PrefillShapeOf<64, Loading::kBoxes> {};
template <>
struct PrefillShapeOf<64, Loading::kRows> {
  using type = TileSizes<64, 3, 80, 3, 152, 56>;
};
template <>
struct PrefillShapeOf<256, Loading::kBytes> {
  using type = TileSizes<256, 2, 64, 2, 208, 88>;
};
template <>
struct PrefillShapeOf<128, Loading::kBytes> {
  using type = TileSizes<128, 3, 64, 3, 144, 80>;
};
template <>
struct PrefillShapeOf<64, Loading::kBytes> {
  using type = TileSizes<64, 3, 64, 3, 136, 104>;
};
template <int Dim, Loading kLoading>
using PrefillShape = typename PrefillShapeOf<Dim, kLoading>::type;

}  // namespace hyla::attention
