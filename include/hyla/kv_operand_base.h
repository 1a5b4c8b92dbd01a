// What an operand need not write itself: KvOperandBase has the provided members and an unquantised
// operand's half of the concept, StridedTmaTiles every TMA tile of an operand whose memory is a
// strided matrix of rows.
#ifndef HYLA_KV_OPERAND_BASE_H_
#define HYLA_KV_OPERAND_BASE_H_

#include <hyla/error.h>
#include <hyla/kv_operand.h>

#include <cstdint>
#include <string>

namespace hyla::attention {

template <class Derived, class Element>
struct KvOperandBase {
  using device_type = Derived;
  using dtype = Element;
  using scale_dtype = float;
  static constexpr int page_size = 0;
  static constexpr bool quantization_enabled = false;
  static constexpr int quantization_granularity = 0;

  HYLA_HOST_DEVICE const float* scales_block_paged_ptr(std::int64_t, std::int64_t, std::int64_t,
                                                       std::int64_t = 0) const {
    return nullptr;
  }
  // A value that is stored as it is has the scale 1.
  template <int width>
  HYLA_HOST_DEVICE ShortVector<float, width> load_scale(std::int64_t, std::int64_t, std::int64_t,
                                                        std::int64_t) const {
    ShortVector<float, width> ones;
    for (int i = 0; i < width; ++i) ones.values[i] = 1.0f;
    return ones;
  }
  HYLA_HOST_DEVICE float* scales_raw_ptr() const { return nullptr; }
  HYLA_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded_index) const {
    return encoded_index;
  }

  template <int tile_size, class Layout>
  HYLA_HOST_DEVICE TileTensor<Element, Layout> block_paged_tile(
      std::uint32_t batch_idx, std::uint32_t start_tok_idx, std::uint32_t head_idx, Layout layout,
      std::uint32_t head_dim_idx = 0) const {
    return {self().template block_paged_ptr<tile_size>(batch_idx, start_tok_idx, head_idx,
                                                       head_dim_idx),
            layout};
  }

  // Derived::page_size is only known inside a function body, so the return type takes it as a
  // default argument.
  template <int BN, int base_alignment, bool pair_cta = false, bool is_leader = true,
            class Self = Derived>
  HYLA_HOST_DEVICE PagedRowIndices<BN, Self::page_size, pair_cta, is_leader> populate(
      std::uint32_t batch_idx, std::uint32_t base_kv_row) const {
    using Rows = PagedRowIndices<BN, Self::page_size, pair_cta, is_leader>;
    constexpr int page = Self::page_size;
    static_assert(base_alignment >= 1, "populate: base_alignment is at least 1");
    static_assert(page == 0 || page >= BN || base_alignment % page == 0,
                  "populate: pages smaller than the tile need a base_alignment of whole pages");
    static_assert(page < BN || (page % BN == 0 && base_alignment % BN == 0),
                  "populate: in a page as large as the tile, tiles must start at multiples of BN");
    Rows result;
    for (int i = 0; i < Rows::num_pages; ++i) {
      result.rows[i] = self().row_idx(
          batch_idx, base_kv_row + static_cast<std::uint32_t>(i) * std::uint32_t{Rows::eff_page});
    }
    return result;
  }

  HYLA_HOST_DEVICE Derived copy() const { return self(); }

 protected:
  HYLA_HOST_DEVICE const Derived& self() const { return static_cast<const Derived&>(*this); }
};

// An operand's memory as a matrix of rows of heads, in elements. The scales' columns are scales of
// one head.
struct RowMatrix {
  const void* base = nullptr;
  std::int64_t rows = 0;  // num_kv_rows
  std::int64_t heads = 0, head_dim = 0;
  std::int64_t row_stride = 0, head_stride = 0;
  const float* scales = nullptr;
  std::int64_t scale_rows = 0;
  std::int64_t scale_row_stride = 0, scale_head_stride = 0;
  std::int64_t scales_per_head = 0;
};

// TMA tiles of an operand with `RowMatrix row_matrix() const`.
template <class Derived, class Element>
struct StridedTmaTiles {
  // (rows, heads, head_dim); BK < head_dim loads a prefix of the head, what lies behind head_dim is
  // zero. `depth` only sets the default of BK.
  template <TensorMapSwizzle swizzle_mode, int BN, int depth,
            int BK = padded_depth<Element, swizzle_mode, depth>()>
  KvTmaTile<Element, swizzle_mode, BN, BK> create_tma_tile(const Context&) const {
    static_assert(BK % swizzle_granularity<Element, swizzle_mode>() == 0,
                  "create_tma_tile: BK is a multiple of the swizzle's width");
    const RowMatrix m = matrix();
    return {head_tile<Element>(m, m.base, m.head_dim, BN,
                               swizzle_granularity<Element, swizzle_mode>(), swizzle_mode)};
  }

  template <TensorMapSwizzle swizzle_mode, int BN, int depth,
            int BK = padded_depth<Element, swizzle_mode, depth>()>
  RaggedTma3dTile<Element, swizzle_mode, BN, BK> create_ragged_tma_tile(const Context&) const {
    static_assert(BK % swizzle_granularity<Element, swizzle_mode>() == 0,
                  "create_ragged_tma_tile: BK is a multiple of the swizzle's width");
    const RowMatrix m = matrix();
    const auto size = static_cast<std::int64_t>(sizeof(Element));
    TmaTileSpec spec;
    // Not a pointer that is ever read: with the coordinates of RaggedTma3dTile the two row
    // dimensions add up to an address inside the data.
    spec.base = address(m.base, -BN * m.row_stride * size);
    spec.dtype = dtype_of<Element>;
    spec.rank = 4;
    set(spec, 0, m.head_dim, size, swizzle_granularity<Element, swizzle_mode>());
    set(spec, 1, BN, m.row_stride * size, BN);
    set(spec, 2, m.heads, m.head_stride * size, 1);
    set(spec, 3, m.rows + 1, m.row_stride * size, 1);
    spec.swizzle = swizzle_mode;
    return {spec};
  }

  // Rows that hold `padded_depth` bytes of content and then BK bfloat16 values of rotary embedding.
  template <TensorMapSwizzle swizzle_mode, int BN, int BK, int padded_depth>
  KvTmaTile<bfloat16, swizzle_mode, BN, BK> create_rope_tma_tile(const Context&) const {
    static_assert(BK % swizzle_granularity<bfloat16, swizzle_mode>() == 0,
                  "create_rope_tma_tile: BK is a multiple of the swizzle's width");
    const RowMatrix m = matrix();
    check_rope(m, padded_depth, padded_depth + 2 * BK);
    return {head_tile<bfloat16>(m, address(m.base, padded_depth), BK, BN,
                                swizzle_granularity<bfloat16, swizzle_mode>(), swizzle_mode)};
  }

  // [num_kv_rows, tile_width] with a pitch of tile_stride, both in tma_dtype elements.
  template <int tile_width, int tile_stride = tile_width,
            TensorMapSwizzle swizzle_mode = TensorMapSwizzle::kNone, int tile_height = 4,
            class tma_dtype = Element,
            TensorMapL2Promotion l2_promotion = TensorMapL2Promotion::kNone>
  GatherTmaTile<tma_dtype, tile_height, tile_width, swizzle_mode> create_gather4_tma_tile(
      const Context&) const {
    static_assert(tile_height > 0 && tile_height % 4 == 0,
                  "create_gather4_tma_tile: tile_height is a multiple of 4");
    static_assert(tile_width <= tile_stride,
                  "create_gather4_tma_tile: tile_stride is at least tile_width");
    const RowMatrix m = matrix();
    const auto size = static_cast<std::int64_t>(sizeof(tma_dtype));
    check_pitch(m, "tile_stride", tile_stride * size);
    return {gather_tile(m, m.base, dtype_of<tma_dtype>, tile_width, tile_stride * size,
                        gather4_box_width<tma_dtype, tile_width, swizzle_mode>(), swizzle_mode,
                        l2_promotion)};
  }

  // tile_width is the whole row in bfloat16 elements, content included: the pitch. The tensor's
  // columns are those behind the content, so that no box reaches into the next row.
  template <int tile_width, int padded_depth,
            TensorMapSwizzle swizzle_mode = TensorMapSwizzle::kNone, int tile_height = 4,
            TensorMapL2Promotion l2_promotion = TensorMapL2Promotion::kNone>
  GatherTmaTile<bfloat16, tile_height, tile_width, swizzle_mode> create_rope_gather4_tma_tile(
      const Context&) const {
    static_assert(tile_height > 0 && tile_height % 4 == 0,
                  "create_rope_gather4_tma_tile: tile_height is a multiple of 4");
    static_assert(padded_depth % 2 == 0 && padded_depth < 2 * tile_width,
                  "create_rope_gather4_tma_tile: padded_depth bytes lie inside the row");
    const RowMatrix m = matrix();
    check_rope(m, padded_depth, 2 * tile_width);
    check_pitch(m, "tile_width", 2 * tile_width);
    return {gather_tile(m, address(m.base, padded_depth), DType::kBFloat16,
                        tile_width - padded_depth / 2, 2 * tile_width,
                        gather4_box_width<bfloat16, tile_width, swizzle_mode>(), swizzle_mode,
                        l2_promotion)};
  }

  // [heads, rows] of one scale a token and head, consecutive tokens next to each other.
  template <int BMN>
  TmaTensorTile<float, TileShape<1, BMN>, TileShape<1, BMN>> create_scale_tma_tile(
      const Context&) const {
    const RowMatrix m = matrix();
    if (m.scales == nullptr) fail("scales", "a quantised operand", "one without scales");
    if (m.scales_per_head != 1) {
      fail("scales", "one scale a token and head", std::to_string(m.scales_per_head));
    }
    if (m.scale_row_stride != 1 && m.scale_rows > 1) {
      fail("scales", "consecutive tokens next to each other",
           "a stride of " + std::to_string(m.scale_row_stride));
    }
    TmaTileSpec spec;
    spec.base = m.scales;
    spec.dtype = DType::kFloat32;
    spec.rank = 2;
    set(spec, 0, m.scale_rows, 4, BMN);
    // The driver wants a stride of the single row of a one-head cache too.
    set(spec, 1, m.heads, (m.heads > 1 ? m.scale_head_stride : (m.scale_rows + 3) / 4 * 4) * 4, 1);
    return {spec};
  }

 private:
  RowMatrix matrix() const { return static_cast<const Derived&>(*this).row_matrix(); }

  [[noreturn]] static void fail(const char* argument, const char* expected,
                                const std::string& got) {
    throw InvalidArgument(argument, expected, got);
  }

  // Address arithmetic on integers: the ragged tile's base lies before the data.
  static const void* address(const void* base, std::int64_t bytes) {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) +
                                         static_cast<std::uintptr_t>(bytes));
  }

  static void set(TmaTileSpec& spec, int d, std::int64_t dim, std::int64_t stride, int box) {
    spec.dims[d] = static_cast<std::uint64_t>(dim);
    spec.strides[d] = stride;
    spec.box[d] = static_cast<std::uint32_t>(box);
  }

  template <class T>
  static TmaTileSpec head_tile(const RowMatrix& m, const void* base, std::int64_t depth, int rows,
                               int box, TensorMapSwizzle swizzle) {
    const auto size = static_cast<std::int64_t>(sizeof(Element));  // the strides are the operand's
    TmaTileSpec spec;
    spec.base = base;
    spec.dtype = dtype_of<T>;
    spec.rank = 3;
    set(spec, 0, depth, sizeof(T), box);
    set(spec, 1, m.heads, m.head_stride * size, 1);
    set(spec, 2, m.rows, m.row_stride * size, rows);
    spec.swizzle = swizzle;
    return spec;
  }

  static TmaTileSpec gather_tile(const RowMatrix& m, const void* base, DType dtype, int width,
                                 std::int64_t pitch, int box, TensorMapSwizzle swizzle,
                                 TensorMapL2Promotion l2_promotion) {
    TmaTileSpec spec;
    spec.base = base;
    spec.dtype = dtype;
    spec.rank = 2;
    set(spec, 0, width, static_cast<std::int64_t>(size_of(dtype)), box);
    set(spec, 1, m.rows, pitch, 1);
    spec.swizzle = swizzle;
    spec.l2_promotion = l2_promotion;
    return spec;
  }

  static void check_pitch(const RowMatrix& m, const char* argument, std::int64_t pitch) {
    const std::int64_t actual = m.row_stride * static_cast<std::int64_t>(sizeof(Element));
    if (pitch != actual) {
      fail(argument, ("the row pitch of " + std::to_string(actual) + " bytes").c_str(),
           std::to_string(pitch) + " bytes");
    }
  }

  static void check_rope(const RowMatrix& m, std::int64_t content, std::int64_t row) {
    const std::int64_t head = m.head_dim * static_cast<std::int64_t>(sizeof(Element));
    if (content % 2 != 0) fail("padded_depth", "an even number of bytes", std::to_string(content));
    if (row > head) {
      fail("padded_depth",
           ("content and rope inside the " + std::to_string(head) + " bytes of a head").c_str(),
           std::to_string(row) + " bytes");
    }
  }
};

}  // namespace hyla::attention

#endif  // HYLA_KV_OPERAND_BASE_H_
