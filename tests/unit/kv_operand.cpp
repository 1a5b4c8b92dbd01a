// Where the built-in operands say that a token is, against the formula of the layout written out.
#include <gtest/gtest.h>
#include <hyla/kv_operand_check.h>
#include <hyla/kv_operands.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

namespace hyla::attention {
namespace {

template <class T>
constexpr bool passes_by_value() {
  return is_mha_operand<T>() && MhaOperand<T> && std::is_trivially_copyable_v<T> &&
         std::is_same_v<typename T::device_type, T>;
}
static_assert(passes_by_value<DenseOperand<float>>());
static_assert(passes_by_value<DenseOperand<std::int8_t, float, 32>>());
static_assert(passes_by_value<RaggedOperand<bfloat16>>());
static_assert(passes_by_value<RaggedOperand<float8_e4m3, float>>());
static_assert(passes_by_value<PagedOperand<float16, 64>>());
static_assert(passes_by_value<PagedOperand<float16>>());
static_assert(passes_by_value<PagedOperand<float8_e4m3, 128, float, 64>>());
static_assert(std::is_trivially_copyable_v<TmaTileSpec>);
static_assert(std::is_trivially_copyable_v<PagedRowIndices<128, 16, true, false>>);

static_assert(!cache_length_is_full<PagedOperand<float>>());
static_assert(cache_length_is_full<DenseOperand<float>>());
static_assert(cache_length_is_full<RaggedOperand<float>>());
static_assert(!PagedOperand<float, 16>::quantization_enabled);
static_assert(PagedOperand<std::int8_t, 16, float, 32>::quantization_enabled);

struct WithoutDefaults {
  static constexpr int page_size = 16;
};
struct WithoutPages {
  static constexpr int page_size = 0;
};
static_assert(!quantization_enabled<WithoutDefaults>());
static_assert(!cache_length_is_full<WithoutDefaults>() && cache_length_is_full<WithoutPages>());

// A block pool [P, kv, layers, S, H, D] whose values are their own element numbers.
struct Pool {
  std::int64_t pages, kv, layers, size, heads, dim;
  std::vector<float> values;
  Pool(std::int64_t pages_, std::int64_t kv_, std::int64_t layers_, std::int64_t size_,
       std::int64_t heads_, std::int64_t dim_)
      : pages(pages_), kv(kv_), layers(layers_), size(size_), heads(heads_), dim(dim_) {
    values.resize(static_cast<std::size_t>(pages * kv * layers * size * heads * dim));
    std::iota(values.begin(), values.end(), 0.0f);
  }
  TensorView view(std::int64_t which, std::int64_t layer) {
    return TensorView(values.data(), {pages, kv, layers, size, heads, dim})
        .select(2, layer)
        .select(1, which);
  }
  // The document's row-major layout, written out.
  float expected(std::int64_t page, std::int64_t which, std::int64_t layer, std::int64_t offset,
                 std::int64_t h, std::int64_t d) const {
    return static_cast<float>(
        ((((page * kv + which) * layers + layer) * size + offset) * heads + h) * dim + d);
  }
};

template <int PageSize>
void check_paged(std::int64_t size, bool heads_first) {
  SCOPED_TRACE(testing::Message() << "page " << size << " template " << PageSize << " hnd "
                                  << heads_first);
  constexpr std::int64_t kPages = 7, kColumns = 3, kHeads = 2, kDim = 8;
  std::mt19937 rng(17);
  Pool pool(kPages, 2, 3, heads_first ? kHeads : size, heads_first ? size : kHeads, kDim);
  std::vector<std::int32_t> table(2 * kColumns);
  for (auto& entry : table) entry = static_cast<std::int32_t>(rng() % kPages);
  std::vector<std::int64_t> lengths = {size + 1, 3 * size};
  TensorView pages = pool.view(1, 2);
  if (heads_first) pages = pages.swap(1, 2);
  const auto operand = PagedOperand<float, PageSize>::from(
      pages, TensorView(table.data(), {2, kColumns}), TensorView(lengths.data(), {2}));
  // Rows at the pitch of a token; pages are kv_dim * layers pages apart.
  const std::int64_t stride_rows = heads_first ? 2 * 3 * kHeads * size : 2 * 3 * size;
  EXPECT_EQ(operand.num_kv_rows(), (kPages - 1) * stride_rows + size);
  EXPECT_EQ(operand.max_context_length(), 3 * size);
  EXPECT_EQ(operand.scales_raw_ptr(), nullptr);
  EXPECT_EQ(operand.scales_block_paged_ptr(0, 0, 0), nullptr);
  EXPECT_EQ(operand.template load_scale<2>(0, 0, 0, 0)[1], 1.0f);
  for (std::uint32_t b = 0; b < 2; ++b) {
    EXPECT_EQ(operand.cache_length(b), lengths[b]);
    for (std::uint32_t t = 0; t < 3 * size; ++t) {
      const std::int64_t page = table[b * kColumns + t / size], offset = t % size;
      ASSERT_EQ(operand.row_idx(b, t), page * stride_rows + offset) << b << " " << t;
      ASSERT_EQ(operand.get_tma_row(static_cast<std::int32_t>(page * size + offset)),
                page * stride_rows + offset);
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        const float want = heads_first ? pool.expected(page, 1, 2, h, offset, 5)
                                       : pool.expected(page, 1, 2, offset, h, 5);
        ASSERT_EQ(*operand.template block_paged_ptr<1>(b, t, h, 5), want)
            << b << " " << t << " " << h;
      }
    }
    // Past the table there is nothing.
    EXPECT_EQ(operand.row_idx(b, static_cast<std::uint32_t>(3 * size)), kNoRow);
    EXPECT_EQ(operand.template block_paged_ptr<1>(b, static_cast<std::uint32_t>(3 * size), 0),
              nullptr);
  }
  EXPECT_LT(operand.get_tma_row(-1), 0);
  EXPECT_LT(operand.get_tma_row(static_cast<std::int32_t>(kPages * size)), 0);
  EXPECT_EQ(operand.copy().row_idx(1, 0), operand.row_idx(1, 0));
}

TEST(KvOperand, PagedPlaces) {
  for (bool heads_first : {false, true}) {
    check_paged<1>(1, heads_first);
    check_paged<16>(16, heads_first);
    check_paged<64>(64, heads_first);
    check_paged<100>(100, heads_first);
    for (std::int64_t size : {1, 2, 16, 100}) check_paged<kRunTimePageSize>(size, heads_first);
  }
}

TEST(KvOperand, PagesThatDoNotExistHaveNeitherAddressNorRow) {
  std::vector<float> values(4 * 16 * 8);
  const std::vector<std::int64_t> table = {-1, 4, std::int64_t{1} << 40, 3};
  const std::vector<std::int32_t> lengths = {64};
  const auto operand = PagedOperand<float, 16>::from(TensorView(values.data(), {4, 16, 1, 8}),
                                                     TensorView(table.data(), {1, 4}),
                                                     TensorView(lengths.data(), {1}));
  for (std::uint32_t t : {0u, 16u, 32u}) {
    EXPECT_EQ(operand.block_paged_ptr<16>(0, t, 0), nullptr);
    EXPECT_EQ(operand.row_idx(0, t), kNoRow);
  }
  EXPECT_EQ(operand.block_paged_ptr<16>(0, 48, 0), values.data() + 3 * 16 * 8);
  const auto rows = operand.populate<64, 64>(0, 0);
  EXPECT_EQ(rows.get_row(5), kNoRow);
  EXPECT_EQ(rows.get_row(63), 63u);
  // A box of up to 256 rows that starts at kNoRow lies before the tensor.
  EXPECT_EQ(static_cast<std::int32_t>(kNoRow) + 255, -1);
}

TEST(KvOperand, LengthsBeforeTheStep) {
  std::vector<float> values(8);
  const std::vector<std::int32_t> table = {0, 0}, total = {9, 4}, offsets = {0, 3, 4}, own = {2, 4};
  auto operand =
      PagedOperand<float>::from(TensorView(values.data(), {1, 1, 1, 8}),
                                TensorView(table.data(), {2, 1}), TensorView(total.data(), {2}));
  EXPECT_EQ(operand.cache_length(0), 9);
  operand.new_offsets = IndexSpan(TensorView(offsets.data(), {3}));
  EXPECT_EQ(operand.cache_length(0), 6);  // 9 - (3 - 0)
  EXPECT_EQ(operand.cache_length(1), 3);  // 4 - (4 - 3)
  operand.new_offsets = {};
  operand.new_lengths = IndexSpan(TensorView(own.data(), {2}));
  EXPECT_EQ(operand.cache_length(0), 7);
  EXPECT_EQ(operand.cache_length(1), 0);
}

TEST(KvOperand, DenseAndRaggedPlaces) {
  std::vector<float> values(2 * 5 * 3 * 8);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::vector<std::uint32_t> lengths = {4, 0}, offsets = {1, 4, 9};
  const auto dense = DenseOperand<float>::from(TensorView(values.data(), {2, 5, 3, 8}));
  const auto shorter = DenseOperand<float>::from(TensorView(values.data(), {2, 5, 3, 8}),
                                                 TensorView(lengths.data(), {2}));
  const auto ragged = RaggedOperand<float>::from(TensorView(values.data(), {10, 3, 8}),
                                                 TensorView(offsets.data(), {3}));
  EXPECT_EQ(dense.cache_length(1), 5);
  EXPECT_EQ(shorter.cache_length(0), 4);
  EXPECT_EQ(shorter.cache_length(1), 0);
  EXPECT_EQ(ragged.cache_length(0), 3);
  EXPECT_EQ(ragged.cache_length(1), 5);
  EXPECT_EQ(dense.max_context_length(), 5u);
  EXPECT_EQ(dense.num_kv_rows(), 10);
  EXPECT_EQ(ragged.num_kv_rows(), 10);
  for (std::uint32_t b = 0; b < 2; ++b) {
    for (std::uint32_t t = 0; t < dense.cache_length(b); ++t) {
      EXPECT_EQ(dense.row_idx(b, t), b * 5 + t);
      EXPECT_EQ(*dense.block_paged_ptr<1>(b, t, 2, 3),
                static_cast<float>(((b * 5 + t) * 3 + 2) * 8 + 3));
    }
    for (std::uint32_t t = 0; t < ragged.cache_length(b); ++t) {
      EXPECT_EQ(ragged.row_idx(b, t), offsets[b] + t);
      EXPECT_EQ(*ragged.block_paged_ptr<1>(b, t, 1),
                static_cast<float>(((offsets[b] + t) * 3 + 1) * 8));
    }
  }
  EXPECT_EQ(dense.get_tma_row(7), 7);
  EXPECT_EQ(ragged.get_tma_row(-1), -1);
  const auto tile = dense.block_paged_tile<4>(1, 1, 2, RowPitchLayout{3 * 8}, 4);
  EXPECT_EQ(tile(2, 3), *dense.block_paged_ptr<1>(1, 3, 2, 7));
}

// Only addresses are formed, so the pool need not exist.
TEST(KvOperand, OffsetsBeyond32Bits) {
  static float base;
  const std::vector<std::uint32_t> table = {3'000'000};
  const std::vector<std::int32_t> lengths = {64};
  // 4M pages of 64 rows of 8 heads of 128 values: 2^38 elements; 2 * 4 pages from one page to the
  // next.
  TensorView pages(&base, {4'000'000, 64, 8, 128});
  pages.strides[0] = 8 * 64 * 8 * 128;
  const auto operand = PagedOperand<float, 64>::from(pages, TensorView(table.data(), {1, 1}),
                                                     TensorView(lengths.data(), {1}));
  const std::int64_t rows = 8 * 64;
  EXPECT_EQ(operand.num_kv_rows(), 3'999'999 * rows + 64);
  EXPECT_EQ(operand.row_idx(0, 63), 3'000'000ll * rows + 63);  // 1,536,000,063
  const auto address = reinterpret_cast<std::uintptr_t>(operand.block_paged_ptr<64>(0, 0, 7, 5));
  EXPECT_EQ(address - reinterpret_cast<std::uintptr_t>(&base),
            4 * (3'000'000ull * 8 * 64 * 8 * 128 + 7 * 128 + 5));

  // Rows past 2^31 fit the unsigned row_idx; what a TMA coordinate cannot hold is no row.
  pages.strides[0] = 1000 * 8 * 128;
  const auto wide = PagedOperand<float, 64>::from(pages, TensorView(table.data(), {1, 1}),
                                                  TensorView(lengths.data(), {1}));
  EXPECT_EQ(wide.row_idx(0, 5), 3'000'000'005u);
  EXPECT_EQ(wide.get_tma_row(64 * 2'000'000 + 1), 2'000'000'001);
  EXPECT_LT(wide.get_tma_row(64 * 3'000'000 + 1), 0);
  pages.strides[0] = 2000 * 8 * 128;
  const auto wider = PagedOperand<float, 64>::from(pages, TensorView(table.data(), {1, 1}),
                                                   TensorView(lengths.data(), {1}));
  EXPECT_EQ(wider.row_idx(0, 5), kNoRow);  // 6,000,000,005 does not fit
  EXPECT_EQ(wider.num_kv_rows(), 3'999'999ll * 2000 + 64);
}

TEST(KvOperand, PaddedPagesHaveAddressesButNoRows) {
  std::vector<float> values(400);
  const std::vector<std::int32_t> table = {1, 2}, lengths = {8};
  TensorView pages(values.data(), {3, 4, 2, 8});
  pages.strides[0] = 4 * 16 + 8;  // half a row of padding
  const auto operand = PagedOperand<float, 4>::from(pages, TensorView(table.data(), {1, 2}),
                                                    TensorView(lengths.data(), {1}));
  EXPECT_EQ(operand.block_paged_ptr<4>(0, 4, 1), values.data() + 2 * 72 + 8);
  EXPECT_EQ(operand.num_kv_rows(), 0);
  EXPECT_EQ(operand.row_idx(0, 4), kNoRow);
  EXPECT_LT(operand.get_tma_row(4), 0);
}

template <int PageSize, int BN, bool pair, bool leader>
void check_populate() {
  constexpr int kColumns = 32;
  std::vector<float> none(8);
  TensorView pages(none.data(), {97, PageSize, 1, 8});
  pages.strides[0] = 5 * PageSize * 8;  // five layers
  std::mt19937 rng(PageSize * 1000 + BN);
  std::vector<std::uint32_t> table(2 * kColumns);
  for (auto& entry : table) entry = rng() % 97;
  const std::vector<std::int32_t> lengths = {1, 1};
  const auto operand = PagedOperand<float, PageSize>::from(
      pages, TensorView(table.data(), {2, kColumns}), TensorView(lengths.data(), {2}));
  for (std::uint32_t base = 0; base + BN <= kColumns * PageSize; base += BN) {
    const auto rows = operand.template populate<BN, BN, pair, leader>(1, base);
    ASSERT_EQ(rows.num_pages, PageSize >= BN ? 1 : BN / PageSize);
    for (std::uint32_t i = 0; i < BN; ++i) {
      const std::uint32_t t = base + i;
      const std::uint32_t want = table[kColumns + t / PageSize] * 5 * PageSize + t % PageSize;
      ASSERT_EQ(rows.get_row(i), want) << PageSize << " " << BN << " at " << t;
    }
    const std::uint32_t half = pair && !leader ? BN / 2 : 0;
    for (std::uint32_t i = 0; i < (pair ? BN / 2 : BN); ++i) {
      ASSERT_EQ(rows.get_k_row(i), rows.get_row(half + i));
    }
  }
}

template <int PageSize>
void check_populate_tiles() {
  check_populate<PageSize, 64, false, true>();
  check_populate<PageSize, 128, true, true>();
  check_populate<PageSize, 128, true, false>();
  check_populate<PageSize, 256, false, true>();
}

TEST(KvOperand, PopulateEqualsRowByRow) {
  check_populate_tiles<16>();
  check_populate_tiles<32>();
  check_populate_tiles<64>();
  check_populate_tiles<128>();
  check_populate_tiles<256>();
}

TEST(KvOperand, PopulateWithPagesOnlyKnownAtRunTime) {
  std::vector<float> none(8);
  std::vector<std::int32_t> table = {5, 2, 9, 0}, lengths = {1};
  const auto operand =
      PagedOperand<float>::from(TensorView(none.data(), {10, 24, 1, 8}),
                                TensorView(table.data(), {1, 4}), TensorView(lengths.data(), {1}));
  const auto rows = operand.populate<64, 1>(0, 7);  // any start, although 24 does not divide 64
  for (std::uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(rows.get_row(i), static_cast<std::uint32_t>(table[(7 + i) / 24]) * 24 + (7 + i) % 24);
  }
}

TEST(KvOperand, Scales) {
  std::vector<std::int8_t> values(3 * 4 * 2 * 16);
  std::vector<float> scales(3 * 4 * 2 * 4);
  std::iota(scales.begin(), scales.end(), 0.0f);
  const std::vector<std::int32_t> table = {2, 0}, lengths = {8};
  const TensorView pages(values.data(), {3, 4, 2, 16}), scale_pages(scales.data(), {3, 4, 2, 4});
  const TensorView table_view(table.data(), {1, 2}), length_view(lengths.data(), {1});
  const auto fixed =
      PagedOperand<std::int8_t, 4, float, 4>::from(pages, table_view, length_view, scale_pages);
  const auto any =
      PagedOperand<std::int8_t, 4, float>::from(pages, table_view, length_view, scale_pages);
  EXPECT_EQ(fixed.quantization_granularity, 4);
  EXPECT_EQ(fixed.scales_raw_ptr(), scales.data());
  for (std::int64_t t = 0; t < 8; ++t) {
    const std::int64_t at = ((table[static_cast<std::size_t>(t / 4)] * 4 + t % 4) * 2 + 1) * 4;
    EXPECT_EQ(*fixed.scales_block_paged_ptr(0, t, 1, 9), static_cast<float>(at + 2));  // 9 / 4
    const auto four = fixed.load_scale<4>(0, t, 1, 0);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(four[i], static_cast<float>(at + i));
    const auto each = any.load_scale<8>(0, t, 1, 2);  // one a value: 2 .. 9
    for (int i = 0; i < 8; ++i) EXPECT_EQ(each[i], static_cast<float>(at + (2 + i) / 4));
  }
  EXPECT_EQ(fixed.load_scale<1>(0, 8, 0, 0)[0], 0.0f);  // nowhere
  EXPECT_THROW(
      (PagedOperand<std::int8_t, 4, float, 8>::from(pages, table_view, length_view, scale_pages)),
      InvalidArgument);
  EXPECT_THROW((PagedOperand<std::int8_t, 4, float>::from(pages, table_view, length_view)),
               InvalidArgument);
  EXPECT_THROW((PagedOperand<std::int8_t, 8>::from(pages, table_view, length_view)),
               InvalidArgument);
  EXPECT_THROW((PagedOperand<float, 4>::from(pages, table_view, length_view)), InvalidArgument);
}

TEST(KvOperand, Names) {
  EXPECT_EQ(DenseOperand<float>::get_type_name(), "DenseOperand<float32>");
  EXPECT_EQ((PagedOperand<float8_e4m3, 64, float>::get_type_name()),
            "PagedOperand<float8_e4m3, 64, scaled>");
}

}  // namespace
}  // namespace hyla::attention
