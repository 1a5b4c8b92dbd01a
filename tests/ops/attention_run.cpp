// attention.run against the matrix formulas of attention_case.h.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include "ops/attention_memory.h"

namespace {

using namespace attention_test;
namespace attention = hyla::attention;

void check(const Case& c) {
  SCOPED_TRACE(c.text());
  Memory memory(c);
  for (const std::string& name : hyla::implementations("attention.run")) {
    if (name != "reference") continue;  // the others have tests of their own tolerance
    attention::RunParams params = memory.params();
    params.impl = name.c_str();
    ASSERT_NO_THROW(attention::run(params));
    memory.check();
  }
}

template <class T>
T pick(std::mt19937& rng, std::initializer_list<T> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(rng() % values.size()));
}

Case random_case(unsigned seed) {
  std::mt19937 rng(seed);
  Case c;
  c.seed = seed;
  c.pool = pick(
      rng, {Pool::kDense, Pool::kRagged, Pool::kPaged, Pool::kPaged, Pool::kFused, Pool::kBlocks});
  const bool layout_is_free = c.pool != Pool::kRagged && c.pool != Pool::kBlocks;
  c.layout = layout_is_free ? pick(rng, {KvLayout::kNHD, KvLayout::kHND}) : KvLayout::kNHD;
  c.io = pick(rng, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  c.kv = pick(
      rng, {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3, DType::kInt8});
  c.index = pick(rng, {DType::kInt32, DType::kInt64, DType::kUInt32});
  c.page = pick<std::int64_t>(rng, {1, 2, 16, 64, 100});
  c.kv_heads = pick<std::int64_t>(rng, {1, 2, 3});
  c.query_heads = c.kv_heads * pick<std::int64_t>(rng, {1, 2, 5});
  c.dim = pick<std::int64_t>(rng, {8, 16, 24, 64});
  c.value_dim = c.pool == Pool::kFused || c.pool == Pool::kBlocks
                    ? c.dim
                    : pick<std::int64_t>(rng, {8, 16, 40});
  if (c.kv == DType::kFloat8E4M3 || c.kv == DType::kInt8)
    c.granularity = pick<std::int64_t>(rng, {0, 1, 4, 8});
  c.by_starts = rng() % 3 == 0;
  c.queries.clear();
  c.keys.clear();
  const std::size_t rows = 1 + rng() % 4;
  for (std::size_t r = 0; r < rows; ++r) {
    c.queries.push_back(pick<std::int64_t>(rng, {0, 1, 1, 2, 7, 19}));
    c.keys.push_back(pick<std::int64_t>(rng, {0, 1, 5, 16, 17, 33, 70}));
  }
  c.causal = rng() % 3 != 0;
  switch (rng() % 4) {
    case 0:
      c.window =
          pick<std::int64_t>(rng, {1, 3, 16, 1000, std::numeric_limits<std::int64_t>::max()});
      break;
    case 1:
      c.chunk = pick<std::int64_t>(rng, {1, 4, 16, 1000, std::numeric_limits<std::int64_t>::max()});
      break;
    default:
      break;
  }
  c.sinks = rng() % 3 == 0;
  c.lse = rng() % 4 != 0;
  if (rng() % 3 == 0) c.softcap = 1.5;
  if (rng() % 3 == 0) c.scale = pick(rng, {0.0, 0.3, -0.2});
  return c;
}

TEST(AttentionRun, RandomCalls) {
  for (unsigned seed = 1; seed <= 400; ++seed) {
    check(random_case(seed));
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionRun, EveryPageSizeAndLayout) {
  unsigned seed = 1000;
  for (std::int64_t page : {1, 16, 64, 100, 1024}) {
    for (Pool pool : {Pool::kPaged, Pool::kFused, Pool::kBlocks}) {
      for (KvLayout layout : {KvLayout::kNHD, KvLayout::kHND}) {
        if (pool == Pool::kBlocks && layout == KvLayout::kHND) continue;
        Case c;
        c.pool = pool;
        c.layout = layout;
        c.page = page;
        c.io = c.kv = DType::kBFloat16;
        c.queries = {1, 5, 1, 30};
        c.keys = {page == 1024 ? 1025 : 101, 5, 0, 70};
        c.query_heads = 6;
        c.dim = c.value_dim = 8;
        c.seed = ++seed;
        check(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttentionRun, HeadDims) {
  unsigned seed = 2000;
  for (std::int64_t dim = 8; dim <= 256; dim += 8) {
    Case c;
    c.dim = dim;
    c.value_dim = 264 - dim;
    c.io = DType::kFloat16;
    c.kv = DType::kFloat16;
    c.queries = {1, 3};
    c.keys = {9, 3};
    c.seed = ++seed;
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionRun, Mla) {
  for (DType kv : {DType::kBFloat16, DType::kFloat8E4M3}) {
    Case c;
    c.mla = true;
    c.dim = 576;
    c.value_dim = 512;
    c.kv_heads = 1;
    c.query_heads = 16;
    c.io = DType::kBFloat16;
    c.kv = kv;
    c.granularity = kv == DType::kFloat8E4M3 ? 64 : 0;
    c.page = 64;
    c.queries = {1, 3};
    c.keys = {70, 3};
    c.scale = 1.0 / std::sqrt(192.0);
    check(c);
  }
}

TEST(AttentionRun, MasksOverMixedRows) {
  unsigned seed = 3000;
  for (bool causal : {true, false}) {
    for (std::int64_t window : {0, 1, 4, 64}) {
      for (std::int64_t chunk : {0, 1, 8, 64}) {
        if (window > 0 && chunk > 0) continue;
        for (bool sinks : {false, true}) {
          Case c;
          c.causal = causal;
          c.window = window;
          c.chunk = chunk;
          c.sinks = sinks;
          c.queries = {1, 12, 40, 0,
                       6};  // decode, chunked prefill, prefill, nothing, more queries than keys
          c.keys = {33, 45, 40, 10, 2};
          c.dim = c.value_dim = 8;
          c.page = 16;
          c.seed = ++seed;
          check(c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Scores by hand: q = (1, 0, ..), keys 0, ln 2, ln 3 in the first place, scale 1: weights 1, 2, 3
// of 6.
struct Tiny {
  std::vector<float> q = std::vector<float>(8), k = std::vector<float>(3 * 8),
                     v = std::vector<float>(3 * 8);
  std::vector<float> out = std::vector<float>(8, NAN), lse = std::vector<float>(1, NAN);
  std::vector<std::int32_t> offsets = {0, 1};
  attention::RunParams params;

  Tiny() {
    q[0] = 1;
    k[8] = std::log(2.0f);
    k[16] = std::log(3.0f);
    v[0] = 6;
    v[8] = 12;
    v[16] = 24;
    params.q = TensorView(q.data(), {1, 1, 8});
    params.cache =
        KvCache::dense(TensorView(k.data(), {1, 3, 1, 8}), TensorView(v.data(), {1, 3, 1, 8}));
    params.out = TensorView(out.data(), {1, 1, 8});
    params.lse = TensorView(lse.data(), {1, 1});
    params.cu_seqlens = TensorView(offsets.data(), {2});
    params.scale = 1.0;
  }
};

TEST(AttentionRun, ByHand) {
  Tiny plain;
  attention::run(plain.params);
  // (1*6 + 2*12 + 3*24) / 6 = 102 / 6; ln 6
  EXPECT_NEAR(plain.out[0], 17.0, 1e-5);
  EXPECT_NEAR(plain.lse[0], std::log(6.0), 1e-6);
  EXPECT_EQ(plain.out[1], 0.0f);

  Tiny window;
  window.params.window = 2;  // the last two keys: (2*12 + 3*24) / 5 = 96 / 5
  attention::run(window.params);
  EXPECT_NEAR(window.out[0], 19.2, 1e-5);
  EXPECT_NEAR(window.lse[0], std::log(5.0), 1e-6);

  Tiny chunk;
  chunk.params.chunk = 2;  // position 2 shares its chunk with nobody
  attention::run(chunk.params);
  EXPECT_NEAR(chunk.out[0], 24.0, 1e-5);
  EXPECT_NEAR(chunk.lse[0], std::log(3.0), 1e-6);

  Tiny sink;
  std::vector<float> logit = {std::log(4.0f)};  // 102 / (6 + 4)
  sink.params.sinks = TensorView(logit.data(), {1});
  attention::run(sink.params);
  EXPECT_NEAR(sink.out[0], 10.2, 1e-5);
  EXPECT_NEAR(sink.lse[0], std::log(10.0), 1e-6);

  Tiny shorter;
  std::vector<std::int64_t> lengths = {2};  // keys 0 and 1: (6 + 24) / 3
  shorter.params.kv_lengths = TensorView(lengths.data(), {1});
  attention::run(shorter.params);
  EXPECT_NEAR(shorter.out[0], 10.0, 1e-5);

  Tiny capped;
  capped.params.softcap = 1.0;  // logits tanh(0), tanh(ln 2) = 3/5, tanh(ln 3) = 4/5
  attention::run(capped.params);
  const double a = std::exp(0.6), b = std::exp(0.8);
  EXPECT_NEAR(capped.out[0], (6 + 12 * a + 24 * b) / (1 + a + b), 1e-5);

  Tiny scaled;
  scaled.params.scale.reset();  // 1 / sqrt(8)
  attention::run(scaled.params);
  const double c = std::pow(2.0, 1 / std::sqrt(8.0)), d = std::pow(3.0, 1 / std::sqrt(8.0));
  EXPECT_NEAR(scaled.out[0], (6 + 12 * c + 24 * d) / (1 + c + d), 1e-5);

  Tiny none;
  lengths = {0};
  none.params.kv_lengths = TensorView(lengths.data(), {1});
  none.params.sinks = TensorView(logit.data(), {1});
  attention::run(none.params);
  for (float value : none.out) EXPECT_EQ(value, 0.0f);
  EXPECT_EQ(none.lse[0], -INFINITY);
}

TEST(AttentionRun, ScalesByHand) {
  // One key of eight int8 values 10 with scales 0.5 and 0.25: query (1, .., 1) . key = 4 * 5 + 4 *
  // 2.5 = 30.
  std::vector<float> q(8, 1.0f), out(8), lse(1), k_scales = {0.5f, 0.25f}, v_scales = {2.0f};
  std::vector<std::int8_t> k(8, 10), v(8, -3);
  std::vector<std::int32_t> offsets = {0, 1};
  attention::RunParams p;
  p.q = TensorView(q.data(), {1, 1, 8});
  p.out = TensorView(out.data(), {1, 1, 8});
  p.lse = TensorView(lse.data(), {1, 1});
  p.cache = KvCache::dense(TensorView(k.data(), {1, 1, 1, 8}), TensorView(v.data(), {1, 1, 1, 8}));
  p.cache.k_scales = TensorView(k_scales.data(), {1, 1, 1, 2});
  p.cache.v_scales = TensorView(v_scales.data(), {1, 1, 1, 1});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  p.scale = 1.0;
  attention::run(p);
  EXPECT_FLOAT_EQ(lse[0], 30.0f);
  EXPECT_FLOAT_EQ(out[7], -6.0f);
}

TEST(AttentionRun, NothingToDo) {
  std::vector<float> memory(64);
  std::vector<std::int32_t> offsets = {0};
  attention::RunParams p;
  p.q = TensorView(memory.data(), {0, 2, 8});
  p.out = TensorView(memory.data(), {0, 2, 8});
  p.cache = KvCache::dense(TensorView(memory.data(), {0, 4, 1, 8}),
                           TensorView(memory.data(), {0, 4, 1, 8}));
  p.cu_seqlens = TensorView(offsets.data(), {1});
  EXPECT_NO_THROW(attention::run(p));
  for (float value : memory) EXPECT_EQ(value, 0.0f);
}

TEST(AttentionRun, Workspace) {
  attention::RunBounds bounds;
  EXPECT_NO_THROW(attention::run_workspace_bytes(bounds));
  bounds.max_tokens = -1;
  EXPECT_THROW(attention::run_workspace_bytes(bounds), hyla::InvalidArgument);
}

}  // namespace
