#include <hyla/error.h>
#include <hyla/tensor.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace {

using hyla::Device;
using hyla::DType;
using hyla::InvalidArgument;
using hyla::TensorView;

static_assert(std::is_trivially_copyable_v<TensorView>);

// Element values are their offsets, so that a view shows where it looks.
class Views : public testing::Test {
 protected:
  Views() { std::iota(data.begin(), data.end(), 0); }

  static std::int32_t at(const TensorView& view, std::initializer_list<std::int64_t> index) {
    EXPECT_EQ(index.size(), static_cast<std::size_t>(view.rank));
    std::int64_t offset = 0;
    int d = 0;
    for (std::int64_t i : index) offset += i * view.strides[d++];
    return static_cast<const std::int32_t*>(view.data)[offset];
  }

  std::vector<std::int32_t> data = std::vector<std::int32_t>(2 * 3 * 8);
  TensorView x{data.data(), {2, 3, 8}};
};

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "view");
    return error.what();
  }
  return "accepted";
}

TEST_F(Views, ADefaultViewIsAbsent) {
  const TensorView none;
  EXPECT_FALSE(none.present());
  EXPECT_FALSE(static_cast<bool>(none));
  EXPECT_EQ(describe(none), "absent");
  EXPECT_EQ(none.numel(), 1);  // rank 0: the empty product
}

TEST_F(Views, DenseIsRowMajor) {
  EXPECT_TRUE(x.present());
  EXPECT_EQ(x.numel(), 48);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 8; ++k) EXPECT_EQ(at(x, {i, j, k}), (i * 3 + j) * 8 + k);
    }
  }
  EXPECT_EQ(describe(x), "int32 [2, 3, 8] on cpu, strides [24, 8, 1]");
  EXPECT_EQ(describe(TensorView(data.data(), {4}, Device::cuda(3))),
            "int32 [4] on cuda:3, strides [1]");
}

TEST_F(Views, ConstDataIsTaken) {
  const std::vector<float> values(4);
  EXPECT_EQ(TensorView(values.data(), {4}).dtype, DType::kFloat32);
}

TEST_F(Views, Slice) {
  const TensorView y = x.slice(2, 5, 2).slice(0, 1, 1);
  EXPECT_EQ(y.shape[0], 1);
  EXPECT_EQ(y.shape[2], 2);
  EXPECT_EQ(at(y, {0, 2, 1}), at(x, {1, 2, 6}));
  EXPECT_EQ(x.slice(1, 3, 0).numel(), 0);  // the empty range at the end
  for (auto [begin, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 1},
           {0, 9},
           {8, 1},
           {0, -1},
           {9, 0},
           {1, std::numeric_limits<std::int64_t>::max()}}) {
    const std::string text = refusal([&, b = begin, l = length] { x.slice(2, b, l); });
    EXPECT_NE(text.find("view: expected a range inside [0, 8)"), std::string::npos) << text;
  }
}

TEST_F(Views, SliceOfAnEmptyTensorWithoutMemory) {
  TensorView empty = TensorView::dense(nullptr, DType::kFloat32, {4, 0});
  empty.strides[0] = 7;
  EXPECT_EQ(empty.slice(0, 2, 1).data, nullptr);
}

TEST_F(Views, SliceOfAnEmptyTensorStaysWhereItIs) {
  float memory[1] = {};
  const TensorView rows(memory, {0, 3, 1000});
  EXPECT_EQ(rows.slice(2, 999, 1).data, memory);
  EXPECT_EQ(rows.select(1, 2).data, memory);
}

TEST_F(Views, Select) {
  const TensorView y = x.select(1, 2);
  EXPECT_EQ(y.rank, 2);
  EXPECT_EQ(at(y, {1, 7}), at(x, {1, 2, 7}));
  const TensorView scalar = y.select(0, 1).select(0, 3);
  EXPECT_EQ(scalar.rank, 0);
  EXPECT_EQ(at(scalar, {}), at(x, {1, 2, 3}));
  EXPECT_EQ(describe(scalar), "int32 [] on cpu, strides []");
  refusal([&] { x.select(1, 3); });
  EXPECT_NE(refusal([&] { x.select(1, 3); }), "accepted");
  EXPECT_NE(refusal([&] { x.select(1, -1); }), "accepted");
}

TEST_F(Views, Swap) {
  const TensorView y = x.swap(0, 2);
  EXPECT_EQ(y.shape[0], 8);
  EXPECT_EQ(y.shape[2], 2);
  EXPECT_EQ(at(y, {7, 1, 0}), at(x, {0, 1, 7}));
  EXPECT_EQ(describe(y.swap(0, 2)), describe(x));
  EXPECT_EQ(describe(x.swap(1, 1)), describe(x));
}

TEST_F(Views, Split) {
  const TensorView y = x.split(2, 4);  // [2, 3, 2, 4]
  EXPECT_EQ(describe(y), "int32 [2, 3, 2, 4] on cpu, strides [24, 8, 4, 1]");
  EXPECT_EQ(at(y, {1, 2, 1, 3}), at(x, {1, 2, 7}));
  EXPECT_EQ(describe(x.split(0, 1)), "int32 [2, 1, 3, 8] on cpu, strides [24, 24, 8, 1]");
  EXPECT_EQ(at(x.swap(0, 2).split(0, 2), {3, 1, 2, 1}), at(x, {1, 2, 7}));
  for (std::int64_t inner : {3, 0, -4, 16}) {
    EXPECT_NE(refusal([&] { x.split(2, inner); }), "accepted") << inner;
  }
  TensorView six(data.data(), {1, 1, 1, 1, 1, 8});
  EXPECT_NE(refusal([&] { six.split(5, 2); }), "accepted");
}

TEST_F(Views, DimensionsOutOfRange) {
  for (int dim : {-1, 3, std::numeric_limits<int>::max()}) {
    for (const std::string& text :
         {refusal([&] { x.slice(dim, 0, 1); }), refusal([&] { x.select(dim, 0); }),
          refusal([&] { x.swap(dim, 0); }), refusal([&] { x.swap(0, dim); }),
          refusal([&] { x.split(dim, 1); })}) {
      EXPECT_NE(text.find("a dimension in [0, 3), got " + std::to_string(dim)), std::string::npos)
          << text;
    }
  }
}

TEST_F(Views, SizesThatNoMemoryHas) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_NE(refusal([&] {
              TensorView::dense(data.data(), DType::kInt32, {2, huge, 2});
            }),
            "accepted");
  EXPECT_NE(refusal([&] {
              TensorView::dense(data.data(), DType::kInt32, {1, 1, 1, 1, 1, 1, 1});
            }),
            "accepted");
  TensorView view = x;
  view.shape[0] = view.shape[1] = huge;
  EXPECT_EQ(view.numel(), std::numeric_limits<std::int64_t>::max());
  view.shape[2] = 0;
  EXPECT_EQ(view.numel(), 0);
}

TEST_F(Views, DescribeReadsOnlyWhatIsThere) {
  TensorView view = x;
  for (int rank : {-1, 7, 1000000}) {
    view.rank = rank;
    EXPECT_NE(describe(view).find("int32 ["), std::string::npos);
  }
}

}  // namespace
