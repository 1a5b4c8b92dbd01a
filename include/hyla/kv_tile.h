// What KV operands hand out besides pointers: TMA tiles, row indices of a tile, tiles with a
// layout, short vectors.
//
// A TMA tile is a *specification* here: everything cuTensorMapEncodeTiled needs, as plain data.
// Code that has CUDA encodes it; code that has not can still make, compare and test it.
#ifndef HYLA_KV_TILE_H_
#define HYLA_KV_TILE_H_

#include <hyla/host_device.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::attention {

enum class TensorMapSwizzle : std::uint8_t { kNone, k32B, k64B, k128B };
enum class TensorMapL2Promotion : std::uint8_t { kNone, k64B, k128B, k256B };

// Width of a swizzle atom in shared memory. Without a swizzle it is the 16 bytes of a core matrix
// row.
HYLA_HOST_DEVICE constexpr int swizzle_bytes(TensorMapSwizzle swizzle) {
  switch (swizzle) {
    case TensorMapSwizzle::kNone:
      return 16;
    case TensorMapSwizzle::k32B:
      return 32;
    case TensorMapSwizzle::k64B:
      return 64;
    case TensorMapSwizzle::k128B:
      return 128;
  }
  return 16;
}

// Elements of one swizzle atom: the innermost box size of a K or V tile.
template <class T, TensorMapSwizzle swizzle>
HYLA_HOST_DEVICE constexpr int swizzle_granularity() {
  return swizzle_bytes(swizzle) / static_cast<int>(sizeof(T));
}

// `depth` rounded up to whole swizzle atoms.
template <class T, TensorMapSwizzle swizzle, int depth>
HYLA_HOST_DEVICE constexpr int padded_depth() {
  constexpr int atom = swizzle_granularity<T, swizzle>();
  return (depth + atom - 1) / atom * atom;
}

// Innermost box size of a gather tile: the whole width without a swizzle, one atom with it.
template <class T, int tile_width, TensorMapSwizzle swizzle>
HYLA_HOST_DEVICE constexpr int gather4_box_width() {
  return swizzle == TensorMapSwizzle::kNone ? tile_width : swizzle_granularity<T, swizzle>();
}

// The arguments of cuTensorMapEncodeTiled, dimension 0 innermost. Boxes take every element, and
// what lies outside the tensor reads as zero.
struct TmaTileSpec {
  static constexpr int kMaxRank = 5;
  const void* base = nullptr;
  DType dtype = DType::kNone;
  int rank = 0;
  std::uint64_t dims[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};  // in bytes; strides[0] is the element size
  std::uint32_t box[kMaxRank] = {};
  TensorMapSwizzle swizzle = TensorMapSwizzle::kNone;
  TensorMapL2Promotion l2_promotion = TensorMapL2Promotion::kNone;
};

// Null when the hardware takes the specification, otherwise why it does not.
inline const char* why_not_encodable(const TmaTileSpec& spec) {
  if (spec.rank < 1 || spec.rank > TmaTileSpec::kMaxRank) return "the rank is not 1 to 5";
  if (spec.base == nullptr) return "the base address is null";
  if (reinterpret_cast<std::uintptr_t>(spec.base) % 16 != 0) {
    return "the base address is not a multiple of 16 bytes";
  }
  for (int d = 0; d < spec.rank; ++d) {
    if (spec.dims[d] < 1 || spec.dims[d] > (std::uint64_t{1} << 32)) {
      return "a dimension is not 1 to 2^32";
    }
    if (spec.box[d] < 1 || spec.box[d] > 256) return "a box dimension is not 1 to 256";
    if (d > 0 && (spec.strides[d] % 16 != 0 || spec.strides[d] < 0 ||
                  spec.strides[d] >= (std::int64_t{1} << 40))) {
      return "a stride is not a multiple of 16 bytes below 2^40";
    }
  }
  const std::size_t inner = spec.box[0] * size_of(spec.dtype);
  if (inner % 16 != 0) return "the innermost box dimension is not a multiple of 16 bytes";
  if (spec.swizzle != TensorMapSwizzle::kNone &&
      inner > static_cast<std::size_t>(swizzle_bytes(spec.swizzle))) {
    return "the innermost box dimension is wider than the swizzle";
  }
  return nullptr;
}

// Compile-time sizes, outermost first.
template <int... Sizes>
struct TileShape {
  static constexpr int rank = sizeof...(Sizes);
  static constexpr int sizes[sizeof...(Sizes)] = {Sizes...};
};

// `Tile`: what one load of the kernel fills; `Box`: what one TMA instruction copies.
template <class T, class Tile, class Box>
struct TmaTensorTile {
  using dtype = T;
  using tile_shape = Tile;
  using box_shape = Box;
  static constexpr int rank = Box::rank;
  static_assert(Tile::rank == Box::rank, "tile and box have one rank");
  TmaTileSpec spec;
};

template <class T, TensorMapSwizzle swizzle, int rows, int depth>
using KvTmaTile = TmaTensorTile<T, TileShape<rows, 1, padded_depth<T, swizzle, depth>()>,
                                TileShape<rows, 1, swizzle_granularity<T, swizzle>()>>;

template <class T, int tile_height, int tile_width, TensorMapSwizzle swizzle>
using GatherTmaTile =
    TmaTensorTile<T, TileShape<tile_height, gather4_box_width<T, tile_width, swizzle>()>,
                  TileShape<1, gather4_box_width<T, tile_width, swizzle>()>>;

// Up to BM rows of BN values: a row past the count lies outside the tensor, so that a load gives
// zeros (no NaN behind the end of a sequence reaches the product) and a store is dropped. The rows
// are dimension 1 and, a second time, dimension 3; the base lies BM rows before the data, and the
// coordinates make up for it.
template <class T, TensorMapSwizzle swizzle, int BM, int BN>
struct RaggedTma3dTile {
  using dtype = T;
  static constexpr int rank = 4;
  static constexpr int max_rows = BM;
  static constexpr int columns = BN;
  TmaTileSpec spec;

  struct Coordinates {
    std::int64_t at[4];  // dimension 0 first
  };
  HYLA_HOST_DEVICE static constexpr Coordinates coordinates(std::int64_t column, std::int64_t row,
                                                            std::int64_t count, std::int64_t head) {
    return {{column, BM - count, head, row + count}};
  }
};

// "There is no such row." As an int32 coordinate it is -256: a box of up to 256 rows that starts
// there lies wholly outside the tensor and reads as zeros.
inline constexpr std::uint32_t kNoRow = 0xffffff00u;

// Virtual rows of the sub-pages of a BN-row tile. A page of at least BN rows (or no pages at all)
// makes one sub-page. With `pair_cta` two CTAs share a K tile: the leader loads its first half, the
// other its second half; V is always needed whole, so `rows` covers all of BN.
template <int BN, int page_size, bool pair_cta = false, bool is_leader = true>
struct PagedRowIndices {
  static constexpr int eff_page = page_size == 0 || page_size >= BN ? BN : page_size;
  static constexpr int num_pages = BN / eff_page;
  static_assert(BN % eff_page == 0, "a tile holds whole pages, or a page holds whole tiles");
  static_assert(!pair_cta || BN % 2 == 0, "two CTAs share an even number of rows");
  static constexpr int k_rows = pair_cta ? BN / 2 : BN;
  static constexpr int k_begin = pair_cta && !is_leader ? BN / 2 : 0;

  std::uint32_t rows[num_pages] = {};

  // Row of the tile's `offset`-th token.
  HYLA_HOST_DEVICE constexpr std::uint32_t get_row(std::uint32_t offset) const {
    const std::uint32_t first = rows[offset / eff_page];
    return first == kNoRow ? kNoRow : first + offset % eff_page;
  }
  // Row of the `offset`-th token of this CTA's part of K.
  HYLA_HOST_DEVICE constexpr std::uint32_t get_k_row(std::uint32_t offset) const {
    return get_row(k_begin + offset);
  }
};

// A pointer with the caller's layout: any type with offset = layout(row, column).
template <class T, class Layout>
struct TileTensor {
  const T* data = nullptr;
  Layout layout{};

  HYLA_HOST_DEVICE const T& operator()(std::int64_t row, std::int64_t column) const {
    return data[layout(row, column)];
  }
};

struct RowPitchLayout {
  std::int64_t pitch = 0;
  HYLA_HOST_DEVICE constexpr std::int64_t operator()(std::int64_t row, std::int64_t column) const {
    return row * pitch + column;
  }
};

template <class T, int width>
struct ShortVector {
  T values[width] = {};
  HYLA_HOST_DEVICE constexpr const T& operator[](int i) const { return values[i]; }
};

}  // namespace hyla::attention

#endif  // HYLA_KV_TILE_H_
