// attention.merge: by hand, against attention over all keys at once, and every wrong argument.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/attention_merge.h>
#include <hyla/backend.h>
#include <hyla/error.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/support/implementations.h"

namespace hyla {
namespace {

using attention::MergeParams;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> cpu_implementations() {
  float number = 0;
  const TensorView values(&number, {1, 1, 1}), lse(&number, {1, 1});
  float out = 0;
  const MergeParams p{values, lse, values, lse, TensorView(&out, {1, 1, 1})};
  return testing::implementations_of(p);
}

struct Sides {
  std::vector<float> a, a_lse, b, b_lse, out, lse;
  std::int64_t rows, dim;

  Sides(std::int64_t rows_, std::int64_t dim_) : rows(rows_), dim(dim_) {
    for (auto* x : {&a, &b, &out}) x->assign(static_cast<std::size_t>(rows * dim), -1);
    for (auto* x : {&a_lse, &b_lse, &lse}) x->assign(static_cast<std::size_t>(rows), -1);
  }
  TensorView values(std::vector<float>& x) const { return {x.data(), {rows, 1, dim}}; }
  TensorView logarithms(std::vector<float>& x) const { return {x.data(), {rows, 1}}; }
  MergeParams params() {
    return {values(a),         logarithms(a_lse), values(b),
            logarithms(b_lse), values(out),       logarithms(lse)};
  }
};

TEST(AttentionMerge, ByHand) {
  for (const std::string& impl : cpu_implementations()) {
    Sides s(4, 3);
    s.a = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
    s.b = {5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7};
    s.a_lse = {2, 0, 100, std::log(3.0f)};
    s.b_lse = {2, 200, -100, 0};
    MergeParams p = s.params();
    p.impl = impl.c_str();
    attention::merge(p);
    const std::vector<float> want = {3, 4, 5, 5, 6, 7, 1, 2, 3, 2, 3, 4};
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(s.out[i], want[i], 1e-5) << impl;
    EXPECT_NEAR(s.lse[0], 2 + std::log(2.0), 1e-6) << impl;
    EXPECT_EQ(s.lse[1], 200) << impl;
    EXPECT_EQ(s.lse[2], 100) << impl;
    EXPECT_NEAR(s.lse[3], std::log(4.0), 1e-6) << impl;
  }
}

// An empty side may hold anything, and the other one comes through to the bit.
TEST(AttentionMerge, SidesWithoutKeys) {
  for (const std::string& impl : cpu_implementations()) {
    for (const std::int64_t dim : {3, 64}) {
      for (const float empty : {-kInf, kInf}) {
        Sides s(3, dim);
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row * dim + i); };
          s.a[at(0)] = s.b[at(1)] = s.a[at(2)] = s.b[at(2)] = kNan;
          s.b[at(0)] = s.a[at(1)] = 1.0f / static_cast<float>(3 + i);
        }
        s.a_lse = {empty, 7, empty};
        s.b_lse = {-3, empty, empty};
        MergeParams p = s.params();
        p.impl = impl.c_str();
        attention::merge(p);
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row * dim + i); };
          EXPECT_EQ(s.out[at(0)], s.b[at(0)]) << impl;
          EXPECT_EQ(s.out[at(1)], s.a[at(1)]) << impl;
          EXPECT_EQ(s.out[at(2)], 0) << impl;
        }
        EXPECT_EQ(s.lse, (std::vector<float>{-3, 7, -kInf})) << impl;
      }
    }
  }
}

TEST(AttentionMerge, NanSpreads) {
  for (const std::string& impl : cpu_implementations()) {
    Sides s(2, 8);
    s.a_lse = {kNan, 1};
    s.b_lse = {1, kNan};
    MergeParams p = s.params();
    p.impl = impl.c_str();
    attention::merge(p);
    for (const float x : s.out) EXPECT_TRUE(std::isnan(x)) << impl;
    for (const float x : s.lse) EXPECT_TRUE(std::isnan(x)) << impl;
  }
}

// Attention over a prefix and over the rest, merged, is attention over all keys.
TEST(AttentionMerge, OfTwoAttentionsIsTheAttentionOverAllKeys) {
  constexpr std::int64_t kKeys = 37, kHeads = 2, kDim = 16, kQueries = 3;
  std::vector<float> q(kQueries * kHeads * kDim), k(kKeys * kHeads * kDim), v(k.size());
  std::uint32_t state = 1;
  const auto draw = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  };
  for (auto* x : {&q, &k, &v}) {
    for (float& number : *x) number = 2 * draw();
  }
  const TensorView queries(q.data(), {kQueries, kHeads, kDim});
  const TensorView keys(k.data(), {1, kKeys, kHeads, kDim});
  const TensorView values(v.data(), {1, kKeys, kHeads, kDim});
  std::vector<std::int32_t> offsets = {0, kQueries};
  const auto attend = [&](std::int64_t first, std::int64_t count, std::vector<float>& out,
                          std::vector<float>& lse) {
    out.assign(q.size(), 0);
    lse.assign(kQueries * kHeads, 0);
    attention::RunParams p;
    p.q = queries;
    p.cache = attention::KvCache::dense(keys.slice(1, first, count), values.slice(1, first, count));
    p.out = TensorView(out.data(), {kQueries, kHeads, kDim});
    p.cu_seqlens = TensorView(offsets.data(), {2});
    p.causal = false;
    p.lse = TensorView(lse.data(), {kQueries, kHeads});
    p.impl = "reference";
    attention::run(p);
  };
  std::vector<float> all, all_lse, a, a_lse, b, b_lse, out(q.size()), lse(kQueries * kHeads);
  attend(0, kKeys, all, all_lse);
  for (const std::int64_t prefix : {std::int64_t{0}, std::int64_t{1}, std::int64_t{20}, kKeys}) {
    attend(0, prefix, a, a_lse);
    attend(prefix, kKeys - prefix, b, b_lse);
    const auto view = [&](std::vector<float>& x) {
      return TensorView(x.data(), {kQueries, kHeads, kDim});
    };
    const auto logarithms = [&](std::vector<float>& x) {
      return TensorView(x.data(), {kQueries, kHeads});
    };
    attention::merge(
        {view(a), logarithms(a_lse), view(b), logarithms(b_lse), view(out), logarithms(lse)});
    // Rounded four times: both sides, their logarithms, and here.
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], all[i], 1e-6) << prefix;
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], all_lse[i], 1e-6) << prefix;
  }
}

TEST(AttentionMerge, WrongArgumentsAreRefusedByName) {
  Sides s(4, 8);
  std::vector<float> spare(64);
  const auto refuse = [&](const std::string& blamed, const std::function<void(MergeParams&)>& f) {
    MergeParams p = s.params();
    f(p);
    try {
      attention::merge(p);
      ADD_FAILURE() << blamed << ": not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), blamed) << error.what();
    }
  };
  using Field = TensorView MergeParams::*;
  struct Argument {
    const char* name;
    Field of;
    bool required;
  };
  for (const Argument& a :
       {Argument{"a", &MergeParams::a, true}, Argument{"a_lse", &MergeParams::a_lse, true},
        Argument{"b", &MergeParams::b, true}, Argument{"b_lse", &MergeParams::b_lse, true},
        Argument{"out", &MergeParams::out, true}, Argument{"lse", &MergeParams::lse, false}}) {
    if (a.required) refuse(a.name, [&](MergeParams& p) { p.*a.of = {}; });
    refuse(a.name, [&](MergeParams& p) { --(p.*a.of).rank; });
    refuse(a.name, [&](MergeParams& p) { (p.*a.of).dtype = DType::kInt8; });
    refuse(a.name, [&](MergeParams& p) { (p.*a.of).data = nullptr; });
    refuse(a.name, [&](MergeParams& p) { (p.*a.of).device = Device::cuda(0); });
  }
  for (const Argument& a :
       {Argument{"b", &MergeParams::b, true}, Argument{"a_lse", &MergeParams::a_lse, true},
        Argument{"out", &MergeParams::out, true}}) {
    refuse(a.name, [&](MergeParams& p) { --(p.*a.of).shape[0]; });
  }
  refuse("b", [](MergeParams& p) { p.b.dtype = DType::kBFloat16; });
  refuse("a_lse", [](MergeParams& p) { p.a_lse.dtype = DType::kBFloat16; });
  refuse("out", [](MergeParams& p) { p.out.strides[0] = 0; });
  refuse("impl", [](MergeParams& p) { p.impl = "none"; });
  // Over an input, but not the same elements.
  refuse("out", [&](MergeParams& p) {
    p.out.data = s.a.data(), p.out.shape[0] = 4, p.out.strides[0] = 8, p.out.data = s.a.data() + 1;
  });
  refuse("out", [](MergeParams& p) { p.lse.data = p.out.data; });
  refuse("lse", [](MergeParams& p) { p.lse.data = p.b.data; });
}

TEST(AttentionMerge, InPlaceAndWithoutALogarithm) {
  for (const std::string& impl : cpu_implementations()) {
    for (const bool second : {false, true}) {
      Sides s(5, 24);
      for (std::size_t i = 0; i < s.a.size(); ++i) {
        s.a[i] = static_cast<float>(i % 7), s.b[i] = static_cast<float>(i % 5) - 2;
      }
      for (std::size_t i = 0; i < 5; ++i) {
        s.a_lse[i] = static_cast<float>(i), s.b_lse[i] = 3 - static_cast<float>(i);
      }
      MergeParams p = s.params();
      p.impl = impl.c_str();
      attention::merge(p);
      const std::vector<float> out = s.out, lse = s.lse;
      p.out = second ? p.b : p.a;
      p.lse = second ? p.a_lse : p.b_lse;
      attention::merge(p);
      EXPECT_EQ(second ? s.b : s.a, out) << impl;
      EXPECT_EQ(second ? s.a_lse : s.b_lse, lse) << impl;
    }
    Sides s(2, 8);
    MergeParams p = s.params();
    p.impl = impl.c_str();
    p.lse = {};
    attention::merge(p);
    EXPECT_EQ(s.out[0], -1) << impl;
    EXPECT_EQ(s.lse[0], -1) << impl;
  }
}

}  // namespace
}  // namespace hyla
