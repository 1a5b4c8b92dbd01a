// The vocabulary of argument checking: shapes by letter, single tensors, slots and sequences.
#include "core/check.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace hyla;
using namespace hyla::core;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

// The message, or "accepted". Every refusal names its argument first.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              error.argument() + ": expected " + error.expected() + ", got " + error.got());
    return error.what();
  }
  return "accepted";
}

float memory[256];

TensorView floats(std::initializer_list<std::int64_t> shape) { return TensorView(memory, shape); }

// Shapes

TEST(Shapes, FirstUseGivesTheSizeOthersAgree) {
  Shapes shapes;
  shapes.match("q", floats({2, 1, 4, 8}), "B 1 H K");
  EXPECT_EQ(shapes["B"], 2);
  EXPECT_EQ(shapes["H"], 4);
  EXPECT_EQ(shapes["K"], 8);
  shapes.match("v", floats({2, 1, 8, 16}), "B 1 HV V");
  EXPECT_EQ(shapes["HV"], 8);
  EXPECT_EQ(refusal([&] {
              shapes.match("k", floats({2, 1, 4, 16}), "B 1 H K");
            }),
            "k: expected shape [B, 1, H, K] with B = 2, H = 4, K = 8, got [2, 1, 4, 16]");
  EXPECT_EQ(refusal([&] {
              shapes.match("k", floats({2, 2, 4, 8}), "B 1 H K");
            }),
            "k: expected shape [B, 1, H, K] with B = 2, H = 4, K = 8, got [2, 2, 4, 8]");
}

TEST(Shapes, RankMustAgree) {
  for (auto shape : {std::initializer_list<std::int64_t>{2}, {2, 3, 4}, {}}) {
    Shapes shapes;
    EXPECT_NE(refusal([&] { shapes.match("x", floats(shape), "B C"); }), "accepted");
  }
}

TEST(Shapes, AtLeastAndOneMore) {
  Shapes shapes;
  shapes.bind("B", 3);
  shapes.match("cu", floats({4}), "B+1");
  EXPECT_NE(refusal([&] { shapes.match("cu", floats({3}), "B+1"); }), "accepted");
  shapes.match("big", floats({3}), ">=B");
  shapes.match("big", floats({9}), ">=B");
  EXPECT_NE(refusal([&] { shapes.match("big", floats({2}), ">=B"); }), "accepted");
  shapes.match("offsets", floats({6}), "N+1");
  EXPECT_EQ(shapes["N"], 5);
  Shapes fresh;
  EXPECT_NE(refusal([&] { fresh.match("offsets", floats({0}), "N+1"); }), "accepted");
}

TEST(Shapes, ALetterTwiceInOnePattern) {
  Shapes shapes;
  EXPECT_NE(refusal([&] { shapes.match("m", floats({2, 3}), "C C"); }), "accepted");
  Shapes fresh;
  fresh.match("m", floats({3, 3}), "C C");
  EXPECT_EQ(fresh["C"], 3);
}

TEST(Shapes, ARefusedTensorGivesNoSizes) {
  Shapes shapes;
  EXPECT_NE(refusal([&] { shapes.match("x", floats({5, 2}), "B 1"); }), "accepted");
  shapes.match("y", floats({7}), "B");
  EXPECT_EQ(shapes["B"], 7);
}

// One tensor

std::string tensor_refusal(const TensorView& view, Inner inner = Inner::kContiguous,
                           Access access = Access::kRead, const Context& context = {}) {
  return refusal([&] { check_tensor("x", view, kFloatTypes, context, inner, access); });
}

TEST(CheckTensor, Accepts) {
  EXPECT_EQ(tensor_refusal(floats({2, 3})), "accepted");
  EXPECT_EQ(tensor_refusal(floats({})), "accepted");
  EXPECT_EQ(tensor_refusal(floats({2, 3}).swap(0, 1), Inner::kAny), "accepted");
  EXPECT_EQ(tensor_refusal(floats({1, 3}).swap(0, 1)), "accepted");  // a last dimension of 1
  EXPECT_EQ(tensor_refusal(TensorView::dense(nullptr, DType::kFloat32, {0, 3})), "accepted");
}

TEST(CheckTensor, Refuses) {
  EXPECT_EQ(tensor_refusal({}), "x: expected a tensor, got none");
  EXPECT_EQ(tensor_refusal(TensorView(memory, {2}, Device::cuda(1))),
            "x: expected a tensor on cpu, got one on cuda:1");
  EXPECT_EQ(tensor_refusal(TensorView::dense(memory, DType::kInt32, {2})),
            "x: expected dtype float32 or bfloat16 or float16, got int32");
  EXPECT_EQ(tensor_refusal(TensorView::dense(nullptr, DType::kFloat32, {2})),
            "x: expected memory, got a null pointer for float32 [2] on cpu, strides [1]");
  EXPECT_NE(tensor_refusal(floats({2, 3}).swap(0, 1)).find("contiguous last dimension"),
            std::string::npos);
  TensorView odd = floats({2});
  odd.data = reinterpret_cast<char*>(memory) + 2;
  EXPECT_NE(tensor_refusal(odd).find("aligned"), std::string::npos);
}

TEST(CheckTensor, ImpossibleSizes) {
  for (int rank : {-1, 7, 1000}) {
    TensorView view = floats({2});
    view.rank = rank;
    EXPECT_NE(tensor_refusal(view).find("rank"), std::string::npos) << rank;
  }
  TensorView negative = floats({2, 3});
  negative.shape[0] = -2;
  EXPECT_NE(tensor_refusal(negative).find("sizes >= 0"), std::string::npos);
  negative = floats({2, 3});
  negative.strides[0] = -3;
  EXPECT_NE(tensor_refusal(negative).find("strides >= 0"), std::string::npos);
  for (auto [size, stride] :
       {std::pair{kHuge, kHuge}, {kHuge, std::int64_t{3}}, {std::int64_t{3}, kHuge}}) {
    TensorView huge = floats({2, 3});
    huge.shape[0] = size;
    huge.strides[0] = stride;
    EXPECT_NE(tensor_refusal(huge).find("2^63"), std::string::npos) << size << " " << stride;
  }
}

TEST(CheckTensor, WrittenTensorsDoNotOverlapThemselves) {
  TensorView view = floats({4, 8});
  const auto verdict = [&](std::int64_t outer, std::int64_t inner) {
    view.strides[0] = outer;
    view.strides[1] = inner;
    EXPECT_EQ(tensor_refusal(view, Inner::kAny, Access::kRead), "accepted");
    return tensor_refusal(view, Inner::kAny, Access::kWrite) == "accepted";
  };
  EXPECT_TRUE(verdict(8, 1));
  EXPECT_TRUE(verdict(9, 1));
  EXPECT_TRUE(verdict(1, 4));
  EXPECT_FALSE(verdict(7, 1));
  EXPECT_FALSE(verdict(0, 1));
  EXPECT_FALSE(verdict(8, 0));
  EXPECT_FALSE(verdict(1, 3));
}

TEST(CheckNumbers, HeadDims) {
  for (std::int64_t dim = -8; dim <= 300; ++dim) {
    const bool good = dim == 8 || (dim > 8 && dim <= 256 && dim % 8 == 0);
    EXPECT_EQ(refusal([&] { check_head_dim("q", dim, "K"); }) == "accepted", good) << dim;
  }
}

TEST(CheckNumbers, ScaleAndPositive) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal([&] { check_scale({}); }), "accepted");
  for (double good : {0.0, -1.5, 1e300}) EXPECT_EQ(refusal([&] { check_scale(good); }), "accepted");
  for (double bad : {nan, inf, -inf}) EXPECT_NE(refusal([&] { check_scale(bad); }), "accepted");
  EXPECT_EQ(refusal([&] { check_positive("eps", 1e-300); }), "accepted");
  for (double bad : {0.0, -0.0, -1.0, nan, inf}) {
    EXPECT_NE(refusal([&] { check_positive("eps", bad); }).find("eps: expected"), std::string::npos)
        << bad;
  }
}

TEST(CheckContext, StreamsWhereTheDeviceHasThem) {
  Context context;
  EXPECT_EQ(refusal([&] { check_context(context); }), "accepted");
  context.threads = -1;
  EXPECT_NE(refusal([&] { check_context(context); }).find("context.threads: "), std::string::npos);
  context.threads = 3;
  context.stream = Stream::cuda(nullptr);
  EXPECT_NE(refusal([&] { check_context(context); }).find("context.stream: "), std::string::npos);
  context.device = Device::cuda(1);
  EXPECT_EQ(refusal([&] { check_context(context); }), "accepted");
  context.stream = {};
  EXPECT_NE(refusal([&] { check_context(context); }).find("context.stream: "), std::string::npos);
  context.stream = Stream::cuda(memory);
  context.device = Device::cuda(-1);
  EXPECT_NE(refusal([&] { check_context(context); }).find("context.device: "), std::string::npos);
}

// Slots

TensorView ints(std::vector<std::int32_t>& values) {
  return TensorView(values.data(), {static_cast<std::int64_t>(values.size())});
}

struct SlotCase {
  TensorView read, columns, write;
  std::int64_t first = 0, read_limit = 10, write_limit = 10;

  Slots check(std::int64_t rows, const Context& context = {}) const {
    Slots slots;
    check_slots(slots, {read, columns, write, first, read_limit, write_limit, "state"}, rows,
                context);
    return slots;
  }
  std::string refusal(std::int64_t rows) const {
    return ::refusal([&] { check(rows); });
  }
};

TEST(CheckSlots, AbsentMeansRowNumber) {
  SlotCase c;
  const Slots slots = c.check(10);
  EXPECT_EQ(slots.read_slot(7), 7);
  EXPECT_EQ(slots.write_slot(7), 7);
  EXPECT_NE(c.refusal(11).find("state: expected at least 11 slots"), std::string::npos);
  c.write_limit = 3;
  EXPECT_NE(c.refusal(4).find("state: "), std::string::npos);
}

TEST(CheckSlots, NullSlotsAndTheirWrites) {
  std::vector<std::int32_t> read = {3, -1, 0, 9}, write = {-5, 1000, 2, 1};
  SlotCase c;
  c.read = ints(read);
  Slots slots = c.check(4);
  EXPECT_EQ(slots.read_slot(1), kNullSlot);
  EXPECT_EQ(slots.read_slot(2), 0);
  EXPECT_EQ(slots.write_slot(3), 9);  // absent write_slots: where it was read
  c.write = ints(write);
  slots = c.check(4);  // 1000 stands beside a padding row, so nobody looks at it
  EXPECT_EQ(slots.read_slot(0), 3);
  EXPECT_EQ(slots.write_slot(0), kNullSlot);
  EXPECT_EQ(slots.write_slot(2), 2);
  c.first = 1;
  slots = c.check(4);
  EXPECT_EQ(slots.read_slot(2), kNullSlot);
  EXPECT_EQ(slots.write_slot(3), 1);
}

TEST(CheckSlots, PastThePool) {
  std::vector<std::int32_t> read = {3, 10}, write = {3, 4};
  SlotCase c;
  c.read = ints(read);
  EXPECT_EQ(c.refusal(2), "read_slots: expected slots below 10, got 10 in row 1");
  read[1] = 9;
  EXPECT_EQ(c.refusal(2), "accepted");
  c.write_limit = 4;
  EXPECT_EQ(c.refusal(2), "read_slots: expected slots below 4, got 9 in row 1");
  c.write = ints(write);
  EXPECT_EQ(c.refusal(2), "write_slots: expected slots below 4, got 4 in row 1");
  std::vector<std::uint32_t> wide = {0, 0xffffffffu};
  c.write = {};
  c.read = TensorView(wide.data(), {2});
  EXPECT_NE(c.refusal(2).find("got 4294967295 in row 1"), std::string::npos);
}

TEST(CheckSlots, ColumnsAreClamped) {
  std::vector<std::int64_t> table = {0, 1, 2, 3, 4, 5};
  std::vector<std::int32_t> columns = {-7, 99};
  SlotCase c;
  c.read = TensorView(table.data(), {2, 3});
  EXPECT_NE(c.refusal(2).find("read_columns: expected"), std::string::npos);
  c.columns = ints(columns);
  const Slots slots = c.check(2);
  EXPECT_EQ(slots.read_slot(0), 0);
  EXPECT_EQ(slots.read_slot(1), 5);
  EXPECT_EQ(slots.write_slot(1), 5);
  c.read = TensorView(table.data(), {3, 2}).swap(0, 1);  // any strides
  EXPECT_EQ(c.check(2).read_slot(1), 5);
  EXPECT_EQ(c.check(2).read_slot(0), 0);
  c.read = TensorView(table.data(), {2, 0});
  EXPECT_NE(c.refusal(2), "accepted");
  c.read = TensorView(table.data(), {2});
  EXPECT_NE(c.refusal(2).find("read_columns: expected none"), std::string::npos);
  c.read = {};
  EXPECT_NE(c.refusal(2).find("read_columns: expected none"), std::string::npos);
}

TEST(CheckSlots, WrongTensors) {
  std::vector<std::int32_t> three = {0, 1, 2};
  SlotCase c;
  c.read = ints(three);
  EXPECT_NE(c.refusal(2).find("read_slots: expected shape [B] with B = 2, got [3]"),
            std::string::npos);
  c.read = floats({2});
  EXPECT_NE(c.refusal(2).find("read_slots: expected dtype int32"), std::string::npos);
  c.read = {};
  c.write = ints(three);
  EXPECT_NE(c.refusal(2).find("write_slots: expected shape"), std::string::npos);
  c.write = {};
  c.first = -1;
  EXPECT_NE(c.refusal(2).find("first_slot: expected"), std::string::npos);
}

TEST(CheckSlots, DeviceMemoryIsNotRead) {
  // Addresses that would fault.
  const auto away = [](std::initializer_list<std::int64_t> shape) {
    return TensorView::dense(reinterpret_cast<void*>(64), DType::kInt32, shape, Device::cuda(0));
  };
  Context context;
  context.device = Device::cuda(0);
  SlotCase c;
  c.read = away({4});
  c.write = away({4});
  EXPECT_TRUE(c.check(4, context).read.present());
  const TensorView offsets = away({5}), none;
  Sequences sequences;
  check_sequences(sequences, {offsets, none, none}, 100, context);
  EXPECT_EQ(sequences.rows, 4);
}

// Sequences

struct SequenceCase {
  std::vector<std::int32_t> cu, starts, lengths;
  std::int64_t total = 10;

  std::string refusal() const {
    auto view = [](const std::vector<std::int32_t>& v) {
      return v.empty() ? TensorView() : TensorView(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    const TensorView c = view(cu), s = view(starts), l = view(lengths);
    return ::refusal([&] {
      Sequences sequences;
      check_sequences(sequences, {c, s, l}, total, {});
      EXPECT_EQ(sequences.rows, rows_of({c, s, l}));
      for (std::int64_t row = 0; row < sequences.rows; ++row) {
        EXPECT_GE(sequences.begin(row), 0);
        EXPECT_LE(sequences.begin(row) + sequences.length(row), total);
      }
    });
  }
};

TEST(CheckSequences, Offsets) {
  EXPECT_EQ((SequenceCase{{0, 3, 3, 10}, {}, {}}.refusal()), "accepted");
  EXPECT_EQ((SequenceCase{{0}, {}, {}}.refusal()), "accepted");
  EXPECT_EQ((SequenceCase{{2, 5}, {}, {}}.refusal()), "accepted");  // leading tokens of nobody
  EXPECT_EQ((SequenceCase{{0, 11}, {}, {}}.refusal()),
            "cu_seqlens: expected offsets up to the 10 tokens given, got 11 at index 1");
  EXPECT_EQ((SequenceCase{{0, 5, 4}, {}, {}}.refusal()),
            "cu_seqlens: expected offsets >= 0 that do not fall, got 4 at index 2");
  EXPECT_NE((SequenceCase{{-1, 5}, {}, {}}.refusal()), "accepted");
  EXPECT_NE((SequenceCase{{0, 5}, {0}, {}}.refusal()).find("starts: expected none"),
            std::string::npos);
  EXPECT_NE((SequenceCase{{0, 5}, {}, {5}}.refusal()).find("lengths: expected none"),
            std::string::npos);
}

TEST(CheckSequences, StartsAndLengths) {
  EXPECT_EQ((SequenceCase{{}, {7, 0, 3}, {3, 2, 4}}.refusal()), "accepted");
  EXPECT_EQ((SequenceCase{{}, {5, 5, 10}, {0, 5, 0}}.refusal()),
            "accepted");  // empty rows lie anywhere
  EXPECT_NE((SequenceCase{{}, {0, 2}, {3, 1}}.refusal()).find("share no token"), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {4, 4}, {1, 1}}.refusal()).find("share no token"), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {0, 1, 8}, {9, 1, 1}}.refusal()).find("share no token"),
            std::string::npos);
  EXPECT_NE((SequenceCase{{}, {8}, {3}}.refusal()).find("starts: "), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {-1}, {3}}.refusal()).find("starts: "), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {11}, {0}}.refusal()).find("starts: "), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {1}, {-1}}.refusal()).find("lengths: "), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {1, 2}, {1}}.refusal()).find("lengths: expected shape"),
            std::string::npos);
  EXPECT_NE((SequenceCase{{}, {1}, {}}.refusal()).find("lengths: expected a tensor"),
            std::string::npos);
}

TEST(CheckSequences, NothingGiven) {
  EXPECT_NE((SequenceCase{{}, {}, {}}.refusal()).find("cu_seqlens: "), std::string::npos);
  EXPECT_NE((SequenceCase{{}, {}, {1}}.refusal()).find("starts: "), std::string::npos);
  const TensorView none;
  EXPECT_FALSE(any_given({none, none, none}));
  EXPECT_NE(refusal([&] { rows_of({none, none, none}); }).find("cu_seqlens: "), std::string::npos);
  std::int32_t value = 0;
  const TensorView scalar(&value, {}), empty(&value, {0});
  EXPECT_NE(refusal([&] {
              rows_of({scalar, none, none});
            }).find("cu_seqlens: "),
            std::string::npos);
  EXPECT_NE(refusal([&] { rows_of({empty, none, none}); }).find("cu_seqlens: "), std::string::npos);
  EXPECT_EQ(rows_of({none, empty, none}), 0);
}

}  // namespace
