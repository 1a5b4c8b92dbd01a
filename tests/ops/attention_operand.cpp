// The reference over operands: the built-in ones by hand, one from outside, and sparse lists.
#include <gtest/gtest.h>
#include <hyla/attention_reference.h>
#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operands.h>

#include <cstdint>
#include <random>
#include <vector>

#include "ops/attention_case.h"

namespace {

using namespace attention_test;
namespace attention = hyla::attention;

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> values(count);
  for (float& x : values) x = uniform(rng);
  return values;
}

// Keys in two places: the first `fast` tokens of each row in one buffer, the rest in another, with
// heads outermost.
struct TwoTierOperand {
  using device_type = TwoTierOperand;
  using dtype = float;
  static constexpr int page_size = 1;  // so cache_length counts the tokens before this step
  const float *first = nullptr, *rest = nullptr;
  std::int64_t fast = 0, rows = 0, heads = 0, dim = 0, capacity = 0, before = 0;

  template <int tile_size>
  const float* block_paged_ptr(std::uint32_t b, std::uint32_t t, std::uint32_t h,
                               std::uint32_t d = 0) const {
    if (t >= fast + capacity) return nullptr;
    const bool in_first = t < fast;
    const std::int64_t size = in_first ? fast : capacity, at = in_first ? t : t - fast;
    return (in_first ? first : rest) + ((h * rows + b) * size + at) * dim + d;
  }
  std::int64_t cache_length(std::int64_t) const { return before; }
  std::uint32_t max_context_length() const { return static_cast<std::uint32_t>(before); }
  std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const { return b * 1000 + t; }
  static const char* get_type_name() { return "TwoTierOperand"; }
};
static_assert(attention::AddressableOperand<TwoTierOperand>);
static_assert(!attention::MhaOperand<TwoTierOperand>);

TEST(AttentionOperand, OneFromOutsideEqualsTheDenseCache) {
  constexpr std::int64_t kRows = 2, kHeads = 2, kDim = 8, kFast = 3, kKeys = 9, kQueries = 2;
  const std::vector<float> k = random_floats(kRows * kKeys * kHeads * kDim, 1),
                           v = random_floats(k.size(), 2);
  const std::vector<float> q = random_floats(kRows * kQueries * 4 * kDim, 3);
  std::vector<float> first_k(kHeads * kRows * kFast * kDim),
      rest_k(kHeads * kRows * (kKeys - kFast) * kDim);
  std::vector<float> first_v(first_k), rest_v(rest_k);
  for (std::int64_t b = 0; b < kRows; ++b) {
    for (std::int64_t t = 0; t < kKeys; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          const auto from = static_cast<std::size_t>(((b * kKeys + t) * kHeads + h) * kDim + d);
          const std::int64_t size = t < kFast ? kFast : kKeys - kFast,
                             at = t < kFast ? t : t - kFast;
          const auto to = static_cast<std::size_t>(((h * kRows + b) * size + at) * kDim + d);
          (t < kFast ? first_k : rest_k)[to] = k[from];
          (t < kFast ? first_v : rest_v)[to] = v[from];
        }
      }
    }
  }
  const std::vector<std::int32_t> offsets = {0, 2, 4};
  std::vector<float> got(q.size(), NAN), want(q.size(), NAN);
  attention::RunParams p;
  p.q = TensorView(q.data(), {kRows * kQueries, 4, kDim});
  p.out = TensorView(got.data(), {kRows * kQueries, 4, kDim});
  p.cu_seqlens = TensorView(offsets.data(), {3});
  TwoTierOperand keys{first_k.data(), rest_k.data(), kFast,         kRows,
                      kHeads,         kDim,          kKeys - kFast, kKeys - kQueries};
  TwoTierOperand values = keys;
  values.first = first_v.data();
  values.rest = rest_v.data();
  attention::reference::run(p, keys, values, kHeads);
  p.out = TensorView(want.data(), {kRows * kQueries, 4, kDim});
  p.cache = KvCache::dense(TensorView(k.data(), {kRows, kKeys, kHeads, kDim}),
                           TensorView(v.data(), {kRows, kKeys, kHeads, kDim}));
  p.impl = "reference";  // the same template over a built-in operand: the same bits
  attention::run(p);
  EXPECT_EQ(got, want);

  // A key without an address is an error, before anything is written.
  std::vector<float> untouched(q.size(), 7.0f);
  p.out = TensorView(untouched.data(), {kRows * kQueries, 4, kDim});
  p.cache = {};
  keys.before = values.before = kKeys;
  EXPECT_THROW(attention::reference::run(p, keys, values, kHeads), hyla::InvalidArgument);
  EXPECT_EQ(untouched, std::vector<float>(q.size(), 7.0f));
}

TEST(AttentionOperand, MixedOperandsAndTheirChecks) {
  // Keys dense, values paged; the paged length counts the tokens before this step, and the keys'
  // operand decides.
  const std::vector<float> k = random_floats(6 * 8, 4), v = random_floats(8 * 8, 5),
                           q = random_floats(8, 6);
  const std::vector<std::int32_t> offsets = {0, 1}, table = {3, 1, 0}, before = {5};
  const auto keys = attention::DenseOperand<float>::from(TensorView(k.data(), {1, 6, 1, 8}));
  const auto values = attention::PagedOperand<float, 2>::from(TensorView(v.data(), {4, 2, 1, 8}),
                                                              TensorView(table.data(), {1, 3}),
                                                              TensorView(before.data(), {1}));
  std::vector<float> out(8, NAN);
  attention::RunParams p;
  p.q = TensorView(q.data(), {1, 1, 8});
  p.out = TensorView(out.data(), {1, 1, 8});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  attention::reference::run(p, keys, values, 1);
  Matrix query(1), key_rows, value_rows;
  for (int d = 0; d < 8; ++d) query[0].push_back(q[static_cast<std::size_t>(d)]);
  for (std::size_t t = 0; t < 6; ++t) {
    const auto page = static_cast<std::size_t>(table[t / 2]);
    key_rows.emplace_back(k.begin() + static_cast<std::ptrdiff_t>(t * 8),
                          k.begin() + static_cast<std::ptrdiff_t>(t * 8 + 8));
    const auto at = static_cast<std::ptrdiff_t>((page * 2 + t % 2) * 8);
    value_rows.emplace_back(v.begin() + at, v.begin() + at + 8);
  }
  Case c;
  c.dim = c.value_dim = 8;
  const Expected want = attend(c, query, key_rows, value_rows, 1 / std::sqrt(8.0), {});
  for (std::size_t d = 0; d < 8; ++d)
    EXPECT_NEAR(out[d], want.out[0][d], half_ulp(DType::kFloat32, want.out[0][d]) + 1e-12);

  const auto argument = [&](attention::RunParams params, std::int64_t heads) -> std::string {
    try {
      attention::reference::run(params, keys, values, heads);
    } catch (const hyla::InvalidArgument& error) {
      return error.argument();
    }
    return "accepted";
  };
  EXPECT_EQ(argument(p, 0), "kv_heads");
  EXPECT_EQ(argument(p, 2), "q");
  attention::RunParams wrong = p;
  wrong.q = {};
  EXPECT_EQ(argument(wrong, 1), "q");
  wrong = p;
  wrong.kv_lengths = TensorView(before.data(), {1});
  EXPECT_EQ(argument(wrong, 1), "kv_lengths");
  wrong = p;
  wrong.cache =
      KvCache::dense(TensorView(k.data(), {1, 6, 1, 8}), TensorView(k.data(), {1, 6, 1, 8}));
  EXPECT_EQ(argument(wrong, 1), "cache");
  wrong = p;
  wrong.out.data = p.q.data;
  EXPECT_EQ(argument(wrong, 1), "out");
}

struct Sparse {
  static constexpr std::int64_t kPages = 5, kSize = 4, kHeads = 2, kDim = 16, kLayers = 2,
                                kTokens = 3;
  std::vector<float> blocks = std::vector<float>(kPages * 2 * kLayers * kSize * kHeads * kDim, NAN);
  std::vector<float> q = random_floats(kTokens * 4 * kDim, 8),
                     out = std::vector<float>(q.size(), NAN);
  std::vector<float> lse = std::vector<float>(kTokens * 4, NAN);
  std::vector<std::int32_t> table = {4, 1}, lengths = {8}, offsets = {0, 3};
  attention::PagedOperand<float, kSize> k, v;
  attention::RunParams params;

  Sparse() {
    std::mt19937 rng(9);
    std::uniform_real_distribution<float> uniform(-2, 2);
    for (std::int64_t page : {4, 1}) {
      for (std::int64_t which : {0, 1}) {
        for (std::int64_t i = 0; i < kSize * kHeads * kDim; ++i)
          blocks[start(page, which, 0) + static_cast<std::size_t>(i)] = uniform(rng);
      }
    }
    const TensorView all(blocks.data(), {kPages, 2, kLayers, kSize, kHeads, kDim});
    const TensorView pages(table.data(), {1, 2}), before(lengths.data(), {1});
    k = attention::PagedOperand<float, kSize>::from(all.select(2, 1).select(1, 0), pages, before);
    v = attention::PagedOperand<float, kSize>::from(all.select(2, 1).select(1, 1), pages, before);
    params.q = TensorView(q.data(), {kTokens, 4, kDim});
    params.out = TensorView(out.data(), {kTokens, 4, kDim});
    params.lse = TensorView(lse.data(), {kTokens, 4});
    params.cu_seqlens = TensorView(offsets.data(), {2});
  }
  // Layer 1 of a page.
  static std::size_t start(std::int64_t page, std::int64_t which, std::int64_t offset) {
    return static_cast<std::size_t>((((page * 2 + which) * kLayers + 1) * kSize + offset) * kHeads *
                                    kDim);
  }
};

TEST(AttentionOperand, SparseListsAreAttendedToAndNothingElse) {
  Sparse s;
  // Encoded = page * 4 + offset; rows that are listed exist, the pool around them is NaN. The third
  // list is empty.
  const std::vector<std::int32_t> lists = {17, -1, 4, 18, 7, 7, -1, -1, -1, -5, -1, -1};
  attention::reference::run_sparse(s.params, s.k, s.v, Sparse::kHeads,
                                   TensorView(lists.data(), {3, 4}));
  Case c;
  c.causal = false;
  c.dim = c.value_dim = Sparse::kDim;
  for (std::size_t token = 0; token < 3; ++token) {
    for (std::size_t h = 0; h < 4; ++h) {
      Matrix query(1), keys, values;
      for (std::size_t d = 0; d < 16; ++d) query[0].push_back(s.q[(token * 4 + h) * 16 + d]);
      for (std::size_t j = 0; j < 4; ++j) {
        const std::int32_t e = lists[token * 4 + j];
        if (e < 0) continue;
        for (std::int64_t which : {0, 1}) {
          const auto at =
              static_cast<std::ptrdiff_t>(Sparse::start(e / 4, which, e % 4) + h / 2 * 16);
          (which == 0 ? keys : values)
              .emplace_back(s.blocks.begin() + at, s.blocks.begin() + at + 16);
        }
      }
      const Expected want = attend(c, query, keys, values, 0.25, {});
      for (std::size_t d = 0; d < 16; ++d) {
        ASSERT_NEAR(s.out[(token * 4 + h) * 16 + d], want.out[0][d],
                    half_ulp(DType::kFloat32, want.out[0][d]) + 1e-12);
      }
      if (token == 2) {
        EXPECT_EQ(s.lse[token * 4 + h], -INFINITY);
      } else {
        EXPECT_NEAR(s.lse[token * 4 + h], want.lse[0],
                    half_ulp(DType::kFloat32, want.lse[0]) + 1e-12);
      }
    }
  }
}

TEST(AttentionOperand, SparseRefusals) {
  Sparse s;
  const auto argument = [&](const attention::RunParams& p, const TensorView& lists) -> std::string {
    try {
      attention::reference::run_sparse(p, s.k, s.v, Sparse::kHeads, lists);
    } catch (const hyla::InvalidArgument& error) {
      return error.argument();
    }
    return "accepted";
  };
  const std::vector<std::int32_t> past = {16, 17, 20};  // page 5 of 5
  const std::vector<std::int64_t> wide = {16, 17, 18};
  EXPECT_EQ(argument(s.params, TensorView(past.data(), {3, 1})), "indices");
  EXPECT_EQ(argument(s.params, TensorView(past.data(), {1, 3})), "indices");
  EXPECT_EQ(argument(s.params, TensorView(wide.data(), {3, 1})), "indices");
  EXPECT_EQ(argument(s.params, {}), "indices");
  const std::vector<std::int32_t> good = {16, 17, 18};
  const TensorView lists(good.data(), {3, 1});
  attention::RunParams p = s.params;
  p.window = 4;
  EXPECT_EQ(argument(p, lists), "window");
  p = s.params;
  p.chunk = 4;
  EXPECT_EQ(argument(p, lists), "chunk");
  p = s.params;
  p.lse.data = const_cast<std::int32_t*>(good.data());
  EXPECT_EQ(argument(p, lists), "lse");
  for (float value : s.out) ASSERT_TRUE(std::isnan(value));
  EXPECT_EQ(argument(s.params, lists), "accepted");
}

}  // namespace
