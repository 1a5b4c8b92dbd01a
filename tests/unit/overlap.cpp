// The overlap verdict against an enumeration of every byte of both tensors.
#include <cstdint>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/check.h"

namespace {

using namespace hyla;
using core::Overlaps;

alignas(16) char memory[1 << 16];

bool refused(const TensorView& a, const TensorView& b, bool b_written) {
  Overlaps overlaps;
  if (b_written) {
    overlaps.writes("b", b);
  } else {
    overlaps.reads("b", b);
  }
  overlaps.writes("a", a);
  try {
    overlaps.check();
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

std::set<std::int64_t> bytes_of(const TensorView& view) {
  std::set<std::int64_t> bytes;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t n = 0; n < view.numel(); ++n) {
    std::int64_t rest = n, offset = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    const std::int64_t first = static_cast<char*>(view.data) - memory + offset * size;
    for (std::int64_t i = 0; i < size; ++i) bytes.insert(first + i);
  }
  return bytes;
}

bool share_a_byte(const TensorView& a, const TensorView& b) {
  const std::set<std::int64_t> of_a = bytes_of(a);
  for (std::int64_t byte : bytes_of(b)) {
    if (of_a.count(byte) != 0) return true;
  }
  return false;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  TensorView tensor(int max_rank, std::int64_t max_size, std::int64_t max_stride) {
    constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kInt64};
    TensorView view;
    view.dtype = kTypes[(*this)(0, 3)];
    view.rank = static_cast<int>((*this)(0, max_rank));
    for (int d = 0; d < view.rank; ++d) {
      view.shape[d] = (*this)(0, 20) == 0 ? 0 : (*this)(1, max_size);
      view.strides[d] = (*this)(0, max_stride);
    }
    view.data = memory + (*this)(0, 16) * static_cast<std::int64_t>(size_of(view.dtype));
    return view;
  }

 private:
  std::mt19937 engine_;
};

TEST(Overlap, ExactForRandomStridedTensors) {
  Random random(1);
  int shared = 0, apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView a = random.tensor(3, 4, 24), b = random.tensor(3, 4, 24);
    const bool expected = share_a_byte(a, b);
    (expected ? shared : apart)++;
    ASSERT_EQ(refused(a, b, i % 2 == 0), expected)
        << describe(a) << " at " << static_cast<char*>(a.data) - memory << "\n"
        << describe(b) << " at " << static_cast<char*>(b.data) - memory;
  }
  EXPECT_GT(shared, 2000);  // both verdicts were put to the test
  EXPECT_GT(apart, 2000);
}

TEST(Overlap, NeverMissesASharedByteWhereTheWalkIsLong) {
  Random random(2);
  int shared = 0;
  for (int i = 0; i < 400; ++i) {
    TensorView a = random.tensor(5, 5, 1000), b = random.tensor(5, 5, 1000);
    while (bytes_of(a).empty()) a = random.tensor(5, 5, 1000);
    while (bytes_of(b).empty()) b = random.tensor(5, 5, 1000);
    if (!share_a_byte(a, b)) continue;
    ++shared;
    ASSERT_TRUE(refused(a, b, false)) << describe(a) << "\n" << describe(b);
  }
  EXPECT_GT(shared, 50);
}

// What engines pass: q | k | v of one projection, gates beside them, pages with several states.
TEST(Overlap, ExactForSlicesOfOnePackedBuffer) {
  Random random(3);
  int shared = 0, apart = 0;
  for (int i = 0; i < 5000; ++i) {
    TensorView buffer = TensorView::dense(memory, DType::kBFloat16, {1}, Device::cpu());
    buffer.rank = 4;
    std::int64_t stride = 1;
    for (int d = 3; d >= 0; --d) {
      buffer.shape[d] = random(1, 6);
      buffer.strides[d] = stride;
      stride *= buffer.shape[d] + (d == 2 ? 1 : 0);  // padded rows
    }
    const auto piece = [&] {
      TensorView view = buffer;
      for (int d = 0; d < 4; ++d) {
        const std::int64_t length = random(1, view.shape[d]);
        view = view.slice(d, random(0, view.shape[d] - length), length);
      }
      if (random(0, 1) == 1)
        view = view.swap(static_cast<int>(random(0, 3)), static_cast<int>(random(0, 3)));
      if (random(0, 1) == 1) view = view.select(static_cast<int>(random(0, 3)), 0);
      return view;
    };
    const TensorView a = piece(), b = piece();
    const bool expected = share_a_byte(a, b);
    (expected ? shared : apart)++;
    ASSERT_EQ(refused(a, b, false), expected) << describe(a) << "\n" << describe(b);
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(apart, 500);
}

TEST(Overlap, InterleavedHeads) {
  // [tokens, heads, q | k]: the two halves of every head, in either order.
  const TensorView qk = TensorView::dense(memory, DType::kFloat32, {16, 4, 32});
  const TensorView q = qk.slice(2, 0, 16), k = qk.slice(2, 16, 16);
  EXPECT_FALSE(refused(q, k, false));
  EXPECT_FALSE(refused(k, q, false));
  EXPECT_TRUE(refused(qk.slice(2, 0, 17), k, false));
  EXPECT_TRUE(refused(k, qk.slice(2, 0, 17), false));
}

TEST(Overlap, ExactForManyTokens) {
  // Nothing is read, so the memory need not exist.
  const TensorView packed = TensorView::dense(memory, DType::kBFloat16, {1 << 20, 8, 5, 64});
  const TensorView first = packed.slice(2, 0, 2), second = packed.slice(2, 2, 3);
  EXPECT_FALSE(refused(first, second, true));
  EXPECT_FALSE(refused(second, first, true));
  EXPECT_FALSE(refused(packed.slice(1, 0, 3), packed.slice(1, 3, 5), true));
  EXPECT_FALSE(refused(packed.slice(3, 7, 1), packed.slice(3, 8, 1), true));
  EXPECT_TRUE(refused(packed.slice(2, 0, 3), second, true));
}

TEST(Overlap, ALateMeetingIsNotMissed) {
  // Bytes at pitches of 2003 and 2011: element 1900 of a is element 1800 of b, and no others meet,
  // which is more than a walk of bounded length can find out.
  TensorView a = TensorView::dense(memory, DType::kUInt8, {2000});
  TensorView b = TensorView::dense(memory, DType::kUInt8, {2000});
  a.strides[0] = 2003;
  b.strides[0] = 2011;
  const std::int64_t shift = 1900 * 2003 - 1800 * 2011;
  b.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) + shift);
  EXPECT_TRUE(refused(a, b, false));
  EXPECT_TRUE(refused(b, a, false));
  a.shape[0] = 10;  // few enough to be sure that they do not meet
  b.shape[0] = 10;
  b.data = memory + 1;
  EXPECT_FALSE(refused(a, b, false));
}

TEST(Overlap, DifferentElementSizesInOnePage) {
  // Pages of 512 bytes: a bfloat16 window in front, a float32 state behind.
  TensorView window = TensorView::dense(memory, DType::kBFloat16, {32, 64});
  TensorView state = TensorView::dense(memory + 128, DType::kFloat32, {32, 96});
  window.strides[0] = 256;
  state.strides[0] = 128;
  EXPECT_FALSE(refused(window, state, true));
  EXPECT_FALSE(refused(state, window, true));
  window.shape[1] = 65;
  EXPECT_TRUE(refused(state, window, true));
}

TEST(Overlap, WhatMayBeShared) {
  const TensorView x(reinterpret_cast<float*>(memory), {4, 4});
  Overlaps reads;
  reads.reads("a", x);
  reads.reads("b", x);
  EXPECT_NO_THROW(reads.check());
  Overlaps empty;
  const TensorView none = x.slice(0, 2, 0), absent;
  empty.writes("a", none);
  empty.writes("b", x);
  empty.writes("c", absent);
  EXPECT_NO_THROW(empty.check());
}

TEST(Overlap, NamesBoth) {
  const TensorView x(reinterpret_cast<float*>(memory), {4, 4});
  Overlaps overlaps;
  const TensorView q = x.slice(0, 0, 1), k = x.slice(0, 1, 1), out = x.slice(0, 1, 2);
  overlaps.reads("q", q);
  overlaps.reads("k", k);
  overlaps.writes("out", out);
  try {
    overlaps.check();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "out");
    EXPECT_NE(std::string(error.what()).find("shared with k"), std::string::npos) << error.what();
  }
}

}  // namespace
