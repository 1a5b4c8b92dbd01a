// The kernels convert one-byte numbers without tables or branches: every one of them, and what lies
// between them.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace hyla::cpu_test {
namespace {

constexpr std::int64_t kDim = 256;

// Every finite e4m3, every midpoint of two neighbours, both with their neighbours in float32, what
// overflows, and what is below everything.
std::vector<float> hard_numbers() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> numbers = {kInfinity, 1e30f, 464.0f, 480.0f, 1e-30f, 1e-40f, 0.0f};
  const auto around = [&](float x) {
    for (const float y : {x, std::nextafterf(x, kInfinity), std::nextafterf(x, 0.0f)}) {
      numbers.push_back(y);
    }
  };
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = detail::e4m3_to_float(static_cast<std::uint8_t>(bits));
    const float high = detail::e4m3_to_float(static_cast<std::uint8_t>(bits + 1));
    around(low);
    around((low + high) / 2);
  }
  for (int i = 0; i <= 130; ++i) {
    around(static_cast<float>(i));
    around(static_cast<float>(i) + 0.5f);
  }
  const std::size_t count = numbers.size();
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  while (numbers.size() % kDim != 0) numbers.push_back(1.0f);
  return numbers;
}

class OneByte : public ::testing::TestWithParam<DType> {};

TEST_P(OneByte, AppendRoundsAsTheFormatsDo) {
  std::vector<float> numbers = hard_numbers();
  if (GetParam() == DType::kFloat8E4M3) numbers[0] = std::numeric_limits<float>::quiet_NaN();
  const auto tokens = static_cast<std::int64_t>(numbers.size()) / kDim;
  std::vector<std::uint8_t> k(numbers.size()), v(numbers.size());
  std::array<std::int64_t, 2> offsets = {0, tokens};
  attention::AppendParams p;
  p.cache =
      attention::KvCache::dense(TensorView::dense(k.data(), GetParam(), {1, tokens, 1, kDim}),
                                TensorView::dense(v.data(), GetParam(), {1, tokens, 1, kDim}));
  p.k = p.v = TensorView::dense(numbers.data(), DType::kFloat32, {tokens, 1, kDim});
  p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {2});
  for (const Candidate& candidate : explain(p)) {
    if (!candidate.supported) continue;
    std::fill(k.begin(), k.end(), std::uint8_t{0x55});
    p.impl = candidate.implementation.c_str();
    attention::append(p);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::uint8_t want = detail::float_to_e4m3(numbers[i]);
      if (GetParam() == DType::kInt8) {
        const float near = std::fmin(127.0f, std::fmax(-127.0f, std::nearbyint(numbers[i])));
        want = static_cast<std::uint8_t>(static_cast<std::int8_t>(near));
      }
      EXPECT_EQ(k[i], want) << numbers[i] << " by " << candidate.implementation;
      EXPECT_EQ(v[i], want) << numbers[i] << " by " << candidate.implementation;
    }
  }
}

// Lines whose largest number is `largest`, with everything hard in between: what lies halfway
// between two numbers after the division, and beside it.
std::vector<float> hard_quotients(float largest, DType dtype) {
  const float most = dtype == DType::kInt8 ? 127.0f : 448.0f;
  std::vector<float> numbers = {largest};
  for (const float x : hard_numbers()) {
    if (std::fabs(x) < most) numbers.push_back(x * (largest / most));
  }
  while (numbers.size() % kDim != 0) numbers.push_back(0.0f);
  for (std::size_t i = 0; i < numbers.size(); i += kDim) numbers[i] = -largest;
  return numbers;
}

// Every number is as near to its quotient as any can be: no farther than half the distance to its
// neighbour, but for what float32 cannot tell.
TEST_P(OneByte, AppendDividesByTheScaleOfARun) {
  const bool whole = GetParam() == DType::kInt8;
  const float most = whole ? 127.0f : 448.0f;
  std::vector<float> numbers;
  for (const float largest : {448.0f, 1.0f, 0.7354321f, 3.1e-20f, 2.9e19f, 1.1e-30f, 1.7e37f}) {
    const std::vector<float> line = hard_quotients(largest, GetParam());
    numbers.insert(numbers.end(), line.begin(), line.end());
  }
  numbers.resize(numbers.size() + kDim, 0.0f);
  const auto tokens = static_cast<std::int64_t>(numbers.size()) / kDim;
  if (!whole) numbers[7] = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t runs : {1, 2, 4, 16}) {
    std::vector<std::uint8_t> k(numbers.size()), v(numbers.size());
    std::vector<float> scales(static_cast<std::size_t>(tokens * runs)), v_scales(scales.size());
    std::array<std::int64_t, 2> offsets = {0, tokens};
    attention::AppendParams p;
    p.cache =
        attention::KvCache::dense(TensorView::dense(k.data(), GetParam(), {1, tokens, 1, kDim}),
                                  TensorView::dense(v.data(), GetParam(), {1, tokens, 1, kDim}));
    p.cache.k_scales = TensorView::dense(scales.data(), DType::kFloat32, {1, tokens, 1, runs});
    p.cache.v_scales = TensorView::dense(v_scales.data(), DType::kFloat32, {1, tokens, 1, runs});
    p.k = p.v = TensorView::dense(numbers.data(), DType::kFloat32, {tokens, 1, kDim});
    p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {2});
    for (const Candidate& candidate : explain(p)) {
      if (!candidate.supported) continue;
      std::fill(k.begin(), k.end(), std::uint8_t{0x55});
      std::fill(scales.begin(), scales.end(), std::nanf(""));
      p.impl = candidate.implementation.c_str();
      attention::append(p);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::size_t run = kDim / static_cast<std::size_t>(runs);
        const double scale = scales[i / run];
        double largest = 0;
        for (std::size_t j = i / run * run; j < (i / run + 1) * run; ++j) {
          largest = std::fmax(largest, std::fabs(numbers[j]));
        }
        const double exact = largest / most;
        ASSERT_LE(std::fabs(scale - exact), exact * 0x1p-23) << i << candidate.implementation;
        if (std::isnan(numbers[i])) {
          EXPECT_EQ(k[i] & 0x7f, 0x7f) << candidate.implementation;
          continue;
        }
        const double want = scale == 0 ? 0 : numbers[i] / scale;
        const double got = whole ? static_cast<std::int8_t>(k[i])
                                 : static_cast<double>(detail::e4m3_to_float(k[i]));
        const int exponent = want == 0 ? -6 : std::max(-6, std::ilogb(want));
        const double step = whole ? 1 : std::ldexp(1, exponent - 3);
        EXPECT_LE(std::fabs(got - want), step / 2 + std::fabs(want) * 0x1p-22)
            << numbers[i] << " of scale " << scale << " by " << candidate.implementation;
        EXPECT_EQ(v[i], k[i]);
      }
    }
  }
}

// Heads of bfloat16 may go another way than the same numbers as float32, to the same bits.
TEST_P(OneByte, AppendMakesTheSameOfWordsAndFloats) {
  constexpr std::int64_t kHeads = 3;
  std::vector<float> numbers;
  for (const float largest : {448.0f, 1.0f, 0.7354321f, 3.1e-20f, 2.9e19f, 1.1e-30f, 1.7e37f}) {
    const std::vector<float> line = hard_quotients(largest, GetParam());
    numbers.insert(numbers.end(), line.begin(), line.end());
  }
  numbers.resize(numbers.size() + kDim, -0.0f);  // a head of nothing
  while (numbers.size() % (kHeads * kDim) != 0) numbers.push_back(1.0f);
  if (GetParam() == DType::kFloat8E4M3) numbers[5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<bfloat16> words;
  for (float& x : numbers) {
    words.push_back(bfloat16(x));
    x = static_cast<float>(words.back());
  }
  const auto tokens = static_cast<std::int64_t>(numbers.size()) / (kHeads * kDim);
  struct Outcome {
    std::vector<std::uint8_t> k, v;
    std::vector<float> k_scales, v_scales;
  };
  std::array<std::int64_t, 2> offsets = {0, tokens};
  const auto append = [&](void* from, DType dtype, const char* impl) {
    Outcome o{std::vector<std::uint8_t>(numbers.size()), std::vector<std::uint8_t>(numbers.size()),
              std::vector<float>(numbers.size() / kDim), std::vector<float>(numbers.size() / kDim)};
    const auto bytes = [&](std::vector<std::uint8_t>& x) {
      return TensorView::dense(x.data(), GetParam(), {1, tokens, kHeads, kDim});
    };
    const auto scales = [&](std::vector<float>& x) {
      return TensorView::dense(x.data(), DType::kFloat32, {1, tokens, kHeads, 1});
    };
    attention::AppendParams p;
    p.cache = attention::KvCache::dense(bytes(o.k), bytes(o.v));
    p.cache.k_scales = scales(o.k_scales);
    p.cache.v_scales = scales(o.v_scales);
    p.k = p.v = TensorView::dense(from, dtype, {tokens, kHeads, kDim});
    p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {2});
    p.impl = impl;
    attention::append(p);
    return o;
  };
  for (const std::string& name : implementations("attention.append")) {
    if (name.rfind("cpu_", 0) != 0) continue;
    Outcome a, b;
    try {
      a = append(numbers.data(), DType::kFloat32, name.c_str());
    } catch (const Unsupported&) {
      continue;  // not on this machine
    }
    b = append(words.data(), DType::kBFloat16, name.c_str());
    EXPECT_EQ(a.k, b.k) << name;
    EXPECT_EQ(a.v, b.v) << name;
    EXPECT_EQ(a.k_scales, b.k_scales) << name;
    EXPECT_EQ(a.v_scales, b.v_scales) << name;
  }
}

// One key has all the weight, so the output is its value.
TEST_P(OneByte, AttentionReadsEveryNumber) {
  std::vector<std::uint8_t> k(kDim), v(kDim);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint8_t>(i);
  const auto value = [&](std::uint8_t bits) {
    if (GetParam() == DType::kInt8) return static_cast<float>(static_cast<std::int8_t>(bits));
    return detail::e4m3_to_float(bits);
  };
  if (GetParam() == DType::kFloat8E4M3) v[0x7f] = v[0xff] = 0;  // NaN
  // 1 query is streamed, 20 are a block.
  for (const std::int64_t heads : {std::int64_t{1}, std::int64_t{20}}) {
    std::vector<float> q(static_cast<std::size_t>(heads * kDim), 1.0f);
    std::vector<float> out(q.size());
    std::array<std::int64_t, 2> offsets = {0, 1};
    attention::RunParams p;
    p.q = TensorView::dense(q.data(), DType::kFloat32, {1, heads, kDim});
    p.out = TensorView::dense(out.data(), DType::kFloat32, {1, heads, kDim});
    p.cache = attention::KvCache::dense(TensorView::dense(k.data(), GetParam(), {1, 1, 1, kDim}),
                                        TensorView::dense(v.data(), GetParam(), {1, 1, 1, kDim}));
    p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {2});
    for (const Candidate& candidate : explain(p)) {
      if (!candidate.supported) continue;
      std::fill(out.begin(), out.end(), std::nanf(""));
      p.impl = candidate.implementation.c_str();
      attention::run(p);
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(out[i], value(v[i % kDim])) << i << " by " << candidate.implementation;
      }
    }
  }
}

// The same with bfloat16 queries and scales that are powers of two: products with them are exact.
TEST_P(OneByte, AttentionScalesEveryRun) {
  for (const std::int64_t runs : {1, 2, 8, 16}) {
    std::vector<std::uint8_t> k(kDim), v(kDim);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint8_t>(i);
    if (GetParam() == DType::kFloat8E4M3) v[0x7f] = v[0xff] = 0;  // NaN
    std::vector<float> scales(static_cast<std::size_t>(runs));
    for (std::size_t r = 0; r < scales.size(); ++r)
      scales[r] = std::ldexp(1.0f, 3 - static_cast<int>(r));
    for (const std::int64_t heads : {std::int64_t{1}, std::int64_t{8}, std::int64_t{20}}) {
      std::vector<bfloat16> q(static_cast<std::size_t>(heads * kDim), bfloat16(1.0f));
      std::vector<bfloat16> out(q.size());
      std::array<std::int64_t, 2> offsets = {0, 1};
      attention::RunParams p;
      p.q = TensorView::dense(q.data(), DType::kBFloat16, {1, heads, kDim});
      p.out = TensorView::dense(out.data(), DType::kBFloat16, {1, heads, kDim});
      p.cache = attention::KvCache::dense(TensorView::dense(k.data(), GetParam(), {1, 1, 1, kDim}),
                                          TensorView::dense(v.data(), GetParam(), {1, 1, 1, kDim}));
      p.cache.k_scales = TensorView::dense(scales.data(), DType::kFloat32, {1, 1, 1, runs});
      p.cache.v_scales = p.cache.k_scales;
      p.cu_seqlens = TensorView::dense(offsets.data(), DType::kInt64, {2});
      for (const Candidate& candidate : explain(p)) {
        if (!candidate.supported) continue;
        std::fill(out.begin(), out.end(), bfloat16(std::nanf("")));
        p.impl = candidate.implementation.c_str();
        attention::run(p);
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::size_t d = i % kDim;
          const float value = GetParam() == DType::kInt8
                                  ? static_cast<float>(static_cast<std::int8_t>(v[d]))
                                  : detail::e4m3_to_float(v[d]);
          const float want = value * scales[d / (kDim / scales.size())];
          EXPECT_EQ(static_cast<float>(out[i]), want) << i << " by " << candidate.implementation;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OneByte, ::testing::Values(DType::kFloat8E4M3, DType::kInt8));

}  // namespace
}  // namespace hyla::cpu_test
