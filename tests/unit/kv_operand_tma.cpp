// TMA tiles, put to the test by a TMA unit in a few lines: it copies a box as the hardware defines
// it, zeros for what lies outside the tensor, and the result is compared with the operand's
// addresses.
#include <gtest/gtest.h>
#include <hyla/kv_operands.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace hyla::attention {
namespace {

using Swizzle = TensorMapSwizzle;

static_assert(padded_depth<bfloat16, Swizzle::k128B, 64>() == 64);
static_assert(padded_depth<bfloat16, Swizzle::k128B, 72>() == 128);
static_assert(padded_depth<bfloat16, Swizzle::k32B, 72>() == 80);
static_assert(padded_depth<float8_e4m3, Swizzle::k128B, 576>() == 640);
static_assert(padded_depth<float8_e4m3, Swizzle::k64B, 576>() == 576);
static_assert(padded_depth<float, Swizzle::kNone, 6>() == 8);
static_assert(gather4_box_width<std::int64_t, 72, Swizzle::kNone>() == 72);
static_assert(gather4_box_width<bfloat16, 576, Swizzle::k128B>() == 64);
static_assert(gather4_box_width<float8_e4m3, 576, Swizzle::k64B>() == 64);

// The box at `at` (dimension 0 first), row-major with dimension 0 innermost.
template <class T>
std::vector<T> copy_box(const TmaTileSpec& spec, std::vector<std::int64_t> at) {
  EXPECT_EQ(size_of(spec.dtype), sizeof(T));
  EXPECT_EQ(at.size(), static_cast<std::size_t>(spec.rank));
  std::size_t count = 1;
  for (int d = 0; d < spec.rank; ++d) count *= spec.box[d];
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = i;
    bool inside = true;
    std::int64_t offset = 0;
    for (int d = 0; d < spec.rank; ++d) {
      const auto c =
          at[static_cast<std::size_t>(d)] + static_cast<std::int64_t>(rest % spec.box[d]);
      rest /= spec.box[d];
      inside = inside && c >= 0 && c < static_cast<std::int64_t>(spec.dims[d]);
      offset += c * spec.strides[d];
    }
    if (inside) {
      std::memcpy(static_cast<void*>(&result[i]),
                  reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(spec.base) +
                                                static_cast<std::uintptr_t>(offset)),
                  sizeof(T));
    } else {
      result[i] = T{};
    }
  }
  return result;
}

template <class T>
struct Aligned {
  explicit Aligned(std::size_t n) : storage(n + 32) {
    first = storage.data();
    while (reinterpret_cast<std::uintptr_t>(first) % 16 != 0) ++first;
  }
  std::vector<T> storage;
  T* first;
};

// Non-zero everywhere, so that a zero can only come from outside the tensor.
float number(std::int64_t i) { return static_cast<float>(i % 200 + 1); }

struct PagedFixture {
  static constexpr std::int64_t kPages = 6, kLayers = 3, kSize = 16, kHeads = 2, kDim = 72;
  Aligned<bfloat16> values{kPages * 2 * kLayers * kSize * kHeads * kDim};
  std::vector<std::int32_t> table = {4, 1, 5, -1, 0, 2, 99, 3}, lengths = {40, 30};
  PagedOperand<bfloat16, kSize> operand;

  explicit PagedFixture(bool heads_first) {
    for (std::int64_t i = 0; i < kPages * 2 * kLayers * kSize * kHeads * kDim; ++i) {
      values.first[i] = bfloat16(number(i));
    }
    const std::int64_t a = heads_first ? kHeads : kSize, b = heads_first ? kSize : kHeads;
    TensorView pages =
        TensorView(values.first, {kPages, 2, kLayers, a, b, kDim}).select(2, 1).select(1, 1);
    if (heads_first) pages = pages.swap(1, 2);
    operand = PagedOperand<bfloat16, kSize>::from(pages, TensorView(table.data(), {2, 4}),
                                                  TensorView(lengths.data(), {2}));
  }
};

TEST(KvTma, TileCopiesWhatTheAddressesSay) {
  for (bool heads_first : {false, true}) {
    const PagedFixture f(heads_first);
    const auto tile = f.operand.create_tma_tile<Swizzle::k128B, 16, 72>({});
    using Tile = decltype(tile);
    static_assert(Tile::tile_shape::sizes[0] == 16 && Tile::tile_shape::sizes[2] == 128);
    static_assert(Tile::box_shape::sizes[1] == 1 && Tile::box_shape::sizes[2] == 64);
    EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
    for (std::uint32_t b = 0; b < 2; ++b) {
      for (std::uint32_t t = 0; t < 64; t += 16) {
        const auto row = static_cast<std::int32_t>(f.operand.row_idx(b, t));
        for (std::uint32_t h = 0; h < 2; ++h) {
          for (std::int64_t chunk = 0; chunk < 128; chunk += 64) {
            const auto box = copy_box<bfloat16>(tile.spec, {chunk, h, row});
            ASSERT_EQ(box.size(), 16u * 64);
            for (std::uint32_t r = 0; r < 16; ++r) {
              for (std::uint32_t d = 0; d < 64; ++d) {
                const std::uint32_t column = static_cast<std::uint32_t>(chunk) + d;
                const bfloat16* from = f.operand.block_paged_ptr<1>(b, t + r, h);
                const bfloat16 want = from == nullptr || column >= 72 ? bfloat16(0) : from[column];
                ASSERT_EQ(box[r * 64 + d].bits, want.bits)
                    << b << " " << t + r << " " << h << " " << column;
              }
            }
          }
        }
      }
    }
  }
}

TEST(KvTma, RaggedTileCutsTheTail) {
  const PagedFixture f(false);
  const auto tile = f.operand.create_ragged_tma_tile<Swizzle::k64B, 16, 64>({});
  EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
  for (std::int64_t count : {0, 1, 7, 16}) {
    for (std::uint32_t t : {0u, 16u, 32u}) {
      const std::int64_t row = f.operand.row_idx(0, t);
      const auto at = tile.coordinates(32, row, count, 1);
      const auto box = copy_box<bfloat16>(tile.spec, {at.at[0], at.at[1], at.at[2], at.at[3]});
      for (std::uint32_t r = 0; r < 16; ++r) {
        for (std::uint32_t d = 0; d < 32; ++d) {
          const bfloat16 want =
              r < count ? f.operand.block_paged_ptr<1>(0, t + r, 1)[32 + d] : bfloat16(0);
          ASSERT_EQ(box[r * 32 + d].bits, want.bits) << count << " " << t << " " << r << " " << d;
        }
      }
    }
  }
}

// MLA rows of 512 one-byte values and 64 bfloat16 ones.
struct RopeRows {
  static constexpr std::int64_t kPages = 3, kSize = 16, kContent = 512, kRope = 64, kRow = 640;
  Aligned<float8_e4m3> bytes{kPages * kSize * kRow};
  std::vector<std::int32_t> table = {2, 0}, lengths = {32};
  PagedOperand<float8_e4m3, kSize> operand;

  RopeRows() {
    for (std::int64_t r = 0; r < kPages * kSize; ++r) {
      for (std::int64_t d = 0; d < kContent; ++d) bytes.first[r * kRow + d].bits = 0x7f;
      for (std::int64_t d = 0; d < kRope; ++d) {
        const bfloat16 value(number(r * 3 + d));
        std::memcpy(static_cast<void*>(bytes.first + r * kRow + kContent + 2 * d), &value, 2);
      }
    }
    operand = PagedOperand<float8_e4m3, kSize>::from(
        TensorView(bytes.first, {kPages, kSize, 1, kRow}), TensorView(table.data(), {1, 2}),
        TensorView(lengths.data(), {1}));
  }
};

TEST(KvTma, RopeTileReadsBehindTheContent) {
  const RopeRows f;
  const auto tile = f.operand.create_rope_tma_tile<Swizzle::k128B, 16, 64, 512>({});
  EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
  EXPECT_EQ(tile.spec.dtype, DType::kBFloat16);
  EXPECT_EQ(tile.spec.strides[2], 640);  // 320 bfloat16 a row
  const std::int64_t row = f.operand.row_idx(0, 16);
  const auto box = copy_box<bfloat16>(tile.spec, {0, 0, row});
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t d = 0; d < 64; ++d) {
      ASSERT_EQ(static_cast<float>(box[static_cast<std::size_t>(r * 64 + d)]),
                number((row + r) * 3 + d));
    }
  }
  EXPECT_THROW((f.operand.create_rope_tma_tile<Swizzle::k128B, 16, 128, 512>({})), InvalidArgument);
}

TEST(KvTma, RopeGatherReadsSingleRows) {
  const RopeRows f;
  const auto tile = f.operand.create_rope_gather4_tma_tile<320, 512, Swizzle::k128B>({});
  EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
  static_assert(decltype(tile)::tile_shape::sizes[0] == 4 &&
                decltype(tile)::box_shape::sizes[0] == 1);
  EXPECT_EQ(tile.spec.dims[0], 64u);
  for (std::int32_t encoded : {0, 17, 47, -1}) {
    const std::int64_t row = f.operand.get_tma_row(encoded);
    const auto box = copy_box<bfloat16>(tile.spec, {0, row});
    for (std::int64_t d = 0; d < 64; ++d) {
      ASSERT_EQ(static_cast<float>(box[static_cast<std::size_t>(d)]),
                encoded < 0 ? 0.0f : number(encoded * 3 + d));
    }
  }
  // Without a swizzle the box is the whole row, which the hardware refuses; the specification says
  // so.
  const auto wide = f.operand.create_rope_gather4_tma_tile<320, 512>({});
  EXPECT_STREQ(why_not_encodable(wide.spec), "a box dimension is not 1 to 256");
  EXPECT_THROW((f.operand.create_rope_gather4_tma_tile<576, 512>({})), InvalidArgument);
}

TEST(KvTma, GatherReadsEncodedRowsAsAnotherType) {
  const PagedFixture f(false);
  // 144 bfloat16 a row = 36 eight-byte words; 72 of the values are the first head.
  const auto tile = f.operand.create_gather4_tma_tile<18, 36, Swizzle::kNone, 8, std::int64_t,
                                                      TensorMapL2Promotion::k128B>({});
  EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
  EXPECT_EQ(tile.spec.l2_promotion, TensorMapL2Promotion::k128B);
  static_assert(decltype(tile)::tile_shape::sizes[0] == 8 &&
                decltype(tile)::box_shape::sizes[1] == 18);
  for (std::int32_t encoded : {0, 16 * 4 + 3, 16 * 5 + 15}) {
    const auto box = copy_box<std::int64_t>(tile.spec, {0, f.operand.get_tma_row(encoded)});
    const std::int64_t page = encoded / 16, offset = encoded % 16;
    const bfloat16* want = f.values.first + ((((page * 2 + 1) * 3 + 1) * 16 + offset) * 2) * 72;
    EXPECT_EQ(std::memcmp(box.data(), want, 144), 0) << encoded;
  }
  const auto nothing = copy_box<std::int64_t>(tile.spec, {0, f.operand.get_tma_row(-1)});
  EXPECT_EQ(nothing, std::vector<std::int64_t>(18, 0));
  // The default stride is the width: right for one head only.
  EXPECT_THROW((f.operand.create_gather4_tma_tile<72>({})), InvalidArgument);
}

TEST(KvTma, ScaleTileRunsAlongTheTokens) {
  Aligned<float> scales(2 * 24);
  for (std::int64_t i = 0; i < 48; ++i) scales.first[i] = number(i);
  std::vector<std::int8_t> values(24 * 2 * 16);
  const std::vector<std::int32_t> offsets = {0, 9, 24};
  // One scale a token and head, stored [heads, tokens].
  const TensorView by_head = TensorView(scales.first, {2, 24, 1}).swap(0, 1);
  const auto operand = RaggedOperand<std::int8_t, float, 16>::from(
      TensorView(values.data(), {24, 2, 16}), TensorView(offsets.data(), {3}), {}, by_head);
  const auto tile = operand.create_scale_tma_tile<16>({});
  EXPECT_EQ(why_not_encodable(tile.spec), nullptr);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t row : {0, 9, 20}) {
      const auto box = copy_box<float>(tile.spec, {row, h});
      for (std::int64_t i = 0; i < 16; ++i) {
        ASSERT_EQ(box[static_cast<std::size_t>(i)], row + i < 24 ? number(h * 24 + row + i) : 0.0f);
      }
    }
  }
  const auto tokens_first = RaggedOperand<std::int8_t, float, 16>::from(
      TensorView(values.data(), {24, 2, 16}), TensorView(offsets.data(), {3}), {},
      TensorView(scales.first, {24, 2, 1}));
  EXPECT_THROW(tokens_first.create_scale_tma_tile<16>({}), InvalidArgument);
  const auto plain = RaggedOperand<std::int8_t>::from(TensorView(values.data(), {24, 2, 16}),
                                                      TensorView(offsets.data(), {3}));
  EXPECT_THROW(plain.create_scale_tma_tile<16>({}), InvalidArgument);
}

TEST(KvTma, WhatTheHardwareRefusesIsSaid) {
  const PagedFixture f(false);
  const TmaTileSpec good = f.operand.create_tma_tile<Swizzle::k128B, 16, 64>({}).spec;
  ASSERT_EQ(why_not_encodable(good), nullptr);
  const auto refused = [&](auto change) {
    TmaTileSpec spec = good;
    change(spec);
    return why_not_encodable(spec) != nullptr;
  };
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.rank = 0; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.base = nullptr; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.base = static_cast<const char*>(s.base) + 8; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.dims[2] = 0; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.strides[1] += 8; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.box[2] = 257; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.box[0] = 4; }));
  EXPECT_TRUE(refused([](TmaTileSpec& s) { s.swizzle = Swizzle::k64B; }));
}

}  // namespace
}  // namespace hyla::attention
