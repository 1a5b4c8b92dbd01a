// attention.append: where the tokens land, how they are rotated and quantised, and that nothing
// else changes.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include <complex>

#include "ops/attention_memory.h"
#include "ops/support/implementations.h"

namespace {

using namespace attention_test;
namespace attention = hyla::attention;

// New tokens for the rows of a Case: `queries` are appended, `keys` is the length afterwards.
struct Append {
  Case c;
  Memory memory;
  Storage k, v, cos, sin;
  std::int64_t rotated = 0, positions = 0;
  bool interleaved = false;

  explicit Append(const Case& c_, std::int64_t rotated_ = 0, bool interleaved_ = false)
      : c(c_), memory(c_), rotated(rotated_), interleaved(interleaved_) {
    const std::int64_t tokens = memory.total();
    k = Storage(c.io, tokens * c.kv_heads * c.dim);
    v = Storage(c.io, tokens * c.kv_heads * c.value_dim);
    for (Storage* storage : {&k, &v}) {
      for (std::int64_t i = 0; i < storage->count(); ++i) storage->set(i, memory.uniform(-3, 3));
    }
    if (rotated > 0) {
      positions = *std::max_element(c.keys.begin(), c.keys.end());
      cos = Storage(DType::kFloat32, positions * rotated / 2);
      sin = Storage(DType::kFloat32, positions * rotated / 2);
      for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t i = 0; i < rotated / 2; ++i) {
          const double angle =
              static_cast<double>(p) *
              std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
          cos.set(p * rotated / 2 + i, std::cos(angle));
          sin.set(p * rotated / 2 + i, std::sin(angle));
        }
      }
    }
  }

  attention::AppendParams params() {
    attention::AppendParams p;
    p.cache = memory.cache();
    p.k = k.view({memory.total(), c.kv_heads, c.dim});
    p.v = v.view({memory.total(), c.kv_heads, c.value_dim});
    if (c.mla) {
      p.cache.v = p.cache.v_scales = {};
      p.v = {};
    }
    memory.set_rows(p);
    p.kv_lengths = memory.params().kv_lengths;
    if (rotated > 0) {
      p.rope.cos = cos.view({positions, rotated / 2});
      p.rope.sin = sin.view({positions, rotated / 2});
      p.rope.interleaved = interleaved;
      // Held to float64; the others turn in float32 and are held to the reference by tests/cpu.
      p.impl = "reference";
    }
    return p;
  }

  // The head that goes into the cache: a complex number a pair, turned.
  std::vector<double> key(std::int64_t token, std::int64_t h, std::int64_t position) const {
    std::vector<double> head = read(k, token, h, c.dim);
    for (std::int64_t i = 0; i < rotated / 2; ++i) {
      const auto a = static_cast<std::size_t>(interleaved ? 2 * i : i);
      const auto b = static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + rotated / 2);
      const std::int64_t at = position * rotated / 2 + i;
      const auto turned =
          std::complex<double>(head[a], head[b]) * std::complex<double>(cos.get(at), sin.get(at));
      head[a] = turned.real();
      head[b] = turned.imag();
    }
    return head;
  }
  std::vector<double> value(std::int64_t token, std::int64_t h) const {
    return read(v, token, h, c.value_dim);
  }

  std::vector<double> read(const Storage& storage, std::int64_t token, std::int64_t h,
                           std::int64_t dim) const {
    std::vector<double> head;
    for (std::int64_t d = 0; d < dim; ++d)
      head.push_back(storage.get((token * c.kv_heads + h) * dim + d));
    return head;
  }
};

std::vector<std::string> cpu_implementations() {
  std::vector<float> k(8), pool(8);
  std::vector<std::int32_t> offsets = {0, 1}, lengths = {1};
  attention::AppendParams p;
  p.k = TensorView(k.data(), {1, 1, 8});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  p.kv_lengths = TensorView(lengths.data(), {1});
  p.cache = KvCache::dense(TensorView(pool.data(), {1, 1, 1, 8}), {});
  return hyla::testing::implementations_of(p);
}

double half_step(DType dtype, double stored) {
  if (dtype == DType::kInt8) return 0.5;
  if (dtype != DType::kFloat8E4M3) return half_ulp(dtype, stored);
  return std::ldexp(0.5, std::max(stored == 0 ? -6 : std::ilogb(stored), -6) - 3);
}

// Stored * scale lies within half a step of the value; the scale is the largest magnitude over the
// largest number. A float32 scale may be 2^-24 too small, and what is then beyond the largest
// number saturates.
void check_head(const Append& a, const Storage& storage, std::int64_t at, const Storage& scales,
                std::int64_t scale_at, const std::vector<double>& want) {
  const double top = a.c.kv == DType::kInt8 ? 127 : 448;
  const auto run = static_cast<std::size_t>(
      a.c.granularity > 0 ? a.c.granularity : static_cast<std::int64_t>(want.size()));
  for (std::size_t begin = 0; begin < want.size(); begin += run) {
    double scale = 1;
    if (a.c.granularity > 0) {
      double largest = 0;
      for (std::size_t d = begin; d < begin + run; ++d)
        largest = std::fmax(largest, std::fabs(want[d]));
      scale = scales.get(scale_at + static_cast<std::int64_t>(begin / run));
      ASSERT_LE(std::fabs(scale - largest / top), half_ulp(DType::kFloat32, largest / top) + 1e-15);
    }
    for (std::size_t d = begin; d < begin + run; ++d) {
      const double exact = scale == 0 ? 0 : want[d] / scale,
                   got = storage.get(at + static_cast<std::int64_t>(d));
      ASSERT_LE(std::fabs(got - exact),
                half_step(a.c.kv, exact) + 1e-13 * std::fabs(exact) + top * 0x1p-24)
          << a.c.text() << ": " << got << " for " << exact;
    }
  }
}

void check(Append& a) {
  SCOPED_TRACE(a.c.text());
  const std::vector<unsigned char> k_before = a.memory.k_storage().bytes(),
                                   v_before = a.memory.v_storage().bytes();
  ASSERT_NO_THROW(attention::append(a.params()));
  // What the append may touch, in elements of the two storages.
  std::vector<bool> k_new(static_cast<std::size_t>(a.memory.k_storage().count()));
  std::vector<bool> v_new(static_cast<std::size_t>(a.memory.v_storage().count()));
  std::vector<bool>& v_marks = a.memory.in_one_pool() || a.c.mla ? k_new : v_new;
  const std::int64_t nk = a.c.granularity > 0 ? a.c.dim / a.c.granularity : 0;
  const std::int64_t nv = a.c.granularity > 0 ? a.c.value_dim / a.c.granularity : 0;
  for (std::int64_t row = 0; row < a.memory.rows(); ++row) {
    const std::int64_t added = a.c.queries[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < added; ++i) {
      const std::int64_t token = a.memory.start(row) + i;
      const std::int64_t position = a.c.keys[static_cast<std::size_t>(row)] - added + i;
      for (std::int64_t h = 0; h < a.c.kv_heads; ++h) {
        const std::int64_t k_at = a.memory.k_offset(row, position, h),
                           v_at = a.memory.v_offset(row, position, h);
        check_head(a, a.memory.k_storage(), k_at, a.memory.k_scale_storage(),
                   nk > 0 ? a.memory.scale_offset(row, position, h, nk) : 0,
                   a.key(token, h, position));
        for (std::int64_t d = 0; d < a.c.dim; ++d) k_new[static_cast<std::size_t>(k_at + d)] = true;
        if (a.c.mla) continue;
        check_head(a, a.memory.v_storage(), v_at, a.memory.v_scale_storage(),
                   nv > 0 ? a.memory.scale_offset(row, position, h, nv) : 0, a.value(token, h));
        for (std::int64_t d = 0; d < a.c.value_dim; ++d)
          v_marks[static_cast<std::size_t>(v_at + d)] = true;
      }
    }
  }
  const std::size_t size = hyla::size_of(a.c.kv);
  const auto untouched = [&](const Storage& now, const std::vector<unsigned char>& before,
                             const std::vector<bool>& may) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!may[i / size]) {
        ASSERT_EQ(now.bytes()[i], before[i]) << "element " << i / size << " was not to be written";
      }
    }
  };
  untouched(a.memory.k_storage(), k_before, k_new);
  untouched(a.memory.v_storage(), v_before, v_marks);
}

Case append_case(unsigned seed) {
  Case c;
  c.seed = seed;
  c.queries = {1, 9, 0, 20};
  c.keys = {34, 9, 5, 33};
  c.dim = 16;
  c.value_dim = 16;
  c.causal = false;
  return c;
}

TEST(AttentionAppend, LandsInEveryLayoutAndDtype) {
  unsigned seed = 1;
  for (Pool pool : {Pool::kDense, Pool::kRagged, Pool::kPaged, Pool::kFused, Pool::kBlocks}) {
    for (KvLayout layout : {KvLayout::kNHD, KvLayout::kHND}) {
      if (layout == KvLayout::kHND && (pool == Pool::kRagged || pool == Pool::kBlocks)) continue;
      for (DType kv :
           {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3, DType::kInt8}) {
        for (std::int64_t granularity : {0, 4, 16}) {
          if (granularity > 0 && kv != DType::kFloat8E4M3 && kv != DType::kInt8) continue;
          Case c = append_case(++seed);
          c.pool = pool;
          c.layout = layout;
          c.kv = kv;
          c.granularity = granularity;
          c.io = seed % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
          c.index = seed % 3 == 0 ? DType::kUInt32 : DType::kInt64;
          c.by_starts = seed % 5 == 0;
          Append a(c);
          check(a);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionAppend, PageSizes) {
  for (std::int64_t page : {1, 3, 16, 64, 100, 1024}) {
    Case c = append_case(100);
    c.page = page;
    Append a(c);
    check(a);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionAppend, RotatesKeys) {
  unsigned seed = 200;
  for (bool interleaved : {false, true}) {
    for (std::int64_t rotated : {2, 8, 16}) {
      for (DType kv : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
        Case c = append_case(++seed);
        c.kv = kv;
        c.granularity = kv == DType::kInt8 ? 8 : 0;
        Append a(c, rotated, interleaved);
        check(a);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttentionAppend, KeysOnlyForMla) {
  Case c = append_case(300);
  c.mla = true;
  c.kv_heads = 1;
  c.dim = 576;
  c.value_dim = 512;
  Append a(c);
  check(a);
}

TEST(AttentionAppend, ByHand) {
  // Position 1 of 2, turned by 90 degrees: (1, 2) becomes (-2, 1); the rest stays. 2 is the largest
  // magnitude of the first half, so its scale is 2/127 and -2 is stored as -127, 1 as 63.5 -> 64
  // (ties to even); zeros get the scale 0.
  std::vector<float> k = {1, 2, 0, 0, 0, 0, 0, 0}, v(8, -4.0f), scales(4, NAN), v_scales(4, NAN);
  std::vector<std::int8_t> k_pool(16, 99), v_pool(16, 99);
  std::vector<float> cos = {1, 0}, sin = {0, 1};
  std::vector<std::int32_t> offsets = {0, 1}, lengths = {2};
  attention::AppendParams p;
  p.cache = KvCache::dense(TensorView(k_pool.data(), {1, 2, 1, 8}),
                           TensorView(v_pool.data(), {1, 2, 1, 8}));
  p.cache.k_scales = TensorView(scales.data(), {1, 2, 1, 2});
  p.cache.v_scales = TensorView(v_scales.data(), {1, 2, 1, 2});
  p.k = TensorView(k.data(), {1, 1, 8});
  p.v = TensorView(v.data(), {1, 1, 8});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  p.kv_lengths = TensorView(lengths.data(), {1});
  p.rope = {TensorView(cos.data(), {2, 1}), TensorView(sin.data(), {2, 1}), false};
  attention::append(p);
  const std::vector<std::int8_t> want_k = {99,   99, 99, 99, 99, 99, 99, 99,
                                           -127, 64, 0,  0,  0,  0,  0,  0};
  EXPECT_EQ(k_pool, want_k);
  EXPECT_FLOAT_EQ(scales[2], 2.0f / 127);
  EXPECT_EQ(scales[3], 0.0f);
  EXPECT_TRUE(std::isnan(scales[0]) && std::isnan(scales[1]));
  EXPECT_EQ(v_pool[8], -127);
  EXPECT_FLOAT_EQ(v_scales[3], 4.0f / 127);
}

TEST(AttentionAppend, SaturatesWithoutScales) {
  std::vector<float> k = {1000, -1000, 449, 0.001f, 127.5f, 0, 0, 0};
  std::vector<std::int8_t> small(8);
  std::vector<hyla::float8_e4m3> e4m3(8);
  std::vector<std::int32_t> offsets = {0, 1};
  attention::AppendParams p;
  p.k = TensorView(k.data(), {1, 1, 8});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  p.cache = KvCache::dense(TensorView(small.data(), {1, 1, 1, 8}), {});
  attention::append(p);
  EXPECT_EQ(small, (std::vector<std::int8_t>{127, -127, 127, 0, 127, 0, 0, 0}));
  p.cache = KvCache::dense(TensorView(e4m3.data(), {1, 1, 1, 8}), {});
  attention::append(p);
  EXPECT_EQ(static_cast<float>(e4m3[0]), 448.0f);
  EXPECT_EQ(static_cast<float>(e4m3[1]), -448.0f);
  EXPECT_EQ(static_cast<float>(e4m3[2]), 448.0f);
  EXPECT_EQ(static_cast<float>(e4m3[4]), 128.0f);
}

// One scale for all tokens and heads, as calibrated checkpoints have: divided by, clamped, not
// written; a scale of 0 makes zeros, one that is NaN makes NaN, and an infinite one zeros too.
TEST(AttentionAppend, GivenScales) {
  struct Wanted {
    float scale;
    std::vector<float> e4m3;
    std::vector<std::int8_t> int8;
  };
  const std::vector<float> k = {1, -2, 0.75f, 300, -300, 0, 0.5f, 40};
  for (const std::string& implementation : cpu_implementations()) {
    for (const Wanted& wanted : {
             Wanted{0.5f, {2, -4, 1.5f, 448, -448, 0, 1, 80}, {2, -4, 2, 127, -127, 0, 1, 80}},
             Wanted{-2.0f,
                    {-0.5f, 1, -0.375f, -144, 144, 0, -0.25f, -20},
                    {0, 1, 0, -127, 127, 0, 0, -20}},
             Wanted{0.0f, std::vector<float>(8, 0.0f), std::vector<std::int8_t>(8, 0)},
             Wanted{INFINITY, std::vector<float>(8, 0.0f), std::vector<std::int8_t>(8, 0)},
             Wanted{NAN, std::vector<float>(8, NAN), std::vector<std::int8_t>(8, -127)},
             Wanted{1e-37f,
                    {448, -448, 448, 448, -448, 0, 448, 448},
                    {127, -127, 127, 127, -127, 0, 127, 127}},
         }) {
      SCOPED_TRACE(implementation + ", scale " + std::to_string(wanted.scale));
      float scale = wanted.scale;
      std::vector<std::int8_t> small(2 * 4 * 2 * 8, 99);
      std::vector<hyla::float8_e4m3> floats(small.size());
      std::vector<std::int32_t> offsets = {0, 1}, lengths = {3}, pages = {1};
      std::vector<float> tokens = k;
      tokens.insert(tokens.end(), k.begin(), k.end());  // two heads
      attention::AppendParams p;
      p.k = TensorView(tokens.data(), {1, 2, 8});
      p.cu_seqlens = TensorView(offsets.data(), {2});
      p.kv_lengths = TensorView(lengths.data(), {1});
      p.given_scales = true;
      p.impl = implementation.c_str();
      const auto append_to = [&](const TensorView& pool) {
        p.cache = KvCache::paged(pool, {}, TensorView(pages.data(), {1, 1}));
        p.cache.k_scales = TensorView(&scale, {2, 4, 2, 1});
        for (std::int64_t& stride : p.cache.k_scales.strides) stride = 0;
        attention::append(p);
        EXPECT_EQ(std::memcmp(&scale, &wanted.scale, sizeof scale), 0);
      };
      append_to(TensorView(small.data(), {2, 4, 2, 8}));
      append_to(TensorView(floats.data(), {2, 4, 2, 8}));
      for (std::size_t i = 0; i < small.size(); ++i) {
        const bool written = i / 16 == 4 + 2;  // page 1, token 2
        const float want = written ? wanted.e4m3[i % 8] : 0.0f, got = static_cast<float>(floats[i]);
        EXPECT_EQ(small[i], written ? wanted.int8[i % 8] : 99) << i;
        EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << i << ": " << got;
      }
    }
  }
}

// Scales for each head and run, read where the tokens land.
TEST(AttentionAppend, GivenScalesOfRuns) {
  std::vector<float> k(16, 3.0f), scales = {0, 0, 0, 0, 1, 2, 4, 8};
  std::vector<std::int8_t> pool(2 * 16, 99);
  std::vector<std::int32_t> offsets = {0, 1}, lengths = {2};
  attention::AppendParams p;
  p.k = TensorView(k.data(), {1, 2, 8});
  p.cu_seqlens = TensorView(offsets.data(), {2});
  p.kv_lengths = TensorView(lengths.data(), {1});
  p.cache = KvCache::dense(TensorView(pool.data(), {1, 2, 2, 8}), {});
  p.cache.k_scales = TensorView(scales.data(), {1, 2, 2, 2});
  p.given_scales = true;
  for (const std::string& implementation : hyla::testing::implementations_of(p)) {
    std::fill(pool.begin(), pool.end(), std::int8_t{99});
    p.impl = implementation.c_str();
    attention::append(p);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::int8_t want[] = {3, 2, 1, 0};  // 3 / 1, 1.5 and 0.75 to the nearest, 0.375
      EXPECT_EQ(pool[i], 99);
      EXPECT_EQ(pool[16 + i], want[i / 4]) << implementation << " " << i;
    }
  }
}

// A prompt appended in pieces and then attended to is the prompt attended to as a dense cache. A
// stored 8-bit value is off by at most half a step, relative to the largest magnitude m of its run
// m / 254 (int8: 0.5 of 127) or m / 28 (e4m3: 16 of 448). Logits are then off by at most e = scale
// * sum |q| * error, weights by a factor of exp(2 e), and the output by the values' error plus what
// the weights can move: (exp(2 e) - 1) * 2 * largest |v|.
TEST(AttentionAppend, ThenRun) {
  for (DType kv : {DType::kFloat32, DType::kFloat8E4M3, DType::kInt8}) {
    constexpr std::int64_t kTokens = 50, kHeads = 2, kDim = 16, kPage = 16;
    std::mt19937 rng(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> q(kHeads * kDim), k(kTokens * kHeads * kDim), v(k.size());
    for (auto* values : {&q, &k, &v}) {
      for (float& x : *values) x = uniform(rng);
    }
    Storage k_pool(kv, 6 * kPage * kHeads * kDim), v_pool(kv, k_pool.count());
    k_pool.fill(kNaN);
    v_pool.fill(kNaN);
    std::vector<float> k_scales(6 * kPage * kHeads * 2, NAN), v_scales = k_scales;
    const std::vector<std::int32_t> table = {4, 0, 5, 2};
    KvCache cache =
        KvCache::paged(k_pool.view({6, kPage, kHeads, kDim}), v_pool.view({6, kPage, kHeads, kDim}),
                       TensorView(table.data(), {1, 4}));
    if (kv != DType::kFloat32) {
      cache.k_scales = TensorView(k_scales.data(), {6, kPage, kHeads, 2});
      cache.v_scales = TensorView(v_scales.data(), {6, kPage, kHeads, 2});
    }
    std::int32_t length = 0;
    for (std::int32_t piece : {1, 20, 0, 29}) {
      const std::vector<std::int32_t> offsets = {0, piece}, lengths = {length + piece};
      attention::AppendParams p;
      p.cache = cache;
      p.k = TensorView(k.data() + length * kHeads * kDim, {piece, kHeads, kDim});
      p.v = TensorView(v.data() + length * kHeads * kDim, {piece, kHeads, kDim});
      p.cu_seqlens = TensorView(offsets.data(), {2});
      p.kv_lengths = TensorView(lengths.data(), {1});
      attention::append(p);
      length += piece;
    }
    const std::vector<std::int32_t> offsets = {0, 1}, lengths = {length};
    std::vector<float> paged(q.size(), NAN), dense(q.size(), NAN);
    attention::RunParams p;
    p.q = TensorView(q.data(), {1, kHeads, kDim});
    p.out = TensorView(paged.data(), {1, kHeads, kDim});
    p.cache = cache;
    p.cu_seqlens = TensorView(offsets.data(), {2});
    p.kv_lengths = TensorView(lengths.data(), {1});
    attention::run(p);
    p.out = TensorView(dense.data(), {1, kHeads, kDim});
    p.cache = KvCache::dense(TensorView(k.data(), {1, kTokens, kHeads, kDim}),
                             TensorView(v.data(), {1, kTokens, kHeads, kDim}));
    attention::run(p);
    // Magnitudes are at most 1, so a value is off by at most this.
    const double error = kv == DType::kFloat32 ? 0 : kv == DType::kInt8 ? 1.0 / 254 : 1.0 / 28;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      double sum = 0;
      for (std::int64_t d = 0; d < kDim; ++d)
        sum += std::fabs(q[static_cast<std::size_t>(h * kDim + d)]);
      const double shift = error * sum / std::sqrt(static_cast<double>(kDim));
      const double bound = error + (std::exp(2 * shift) - 1) * 2 + 0x1p-23;
      for (std::int64_t d = 0; d < kDim; ++d) {
        const auto i = static_cast<std::size_t>(h * kDim + d);
        ASSERT_LE(std::fabs(paged[i] - dense[i]), bound) << name_of(kv);
        if (kv == DType::kFloat32) {
          ASSERT_EQ(paged[i], dense[i]);
        }
      }
    }
  }
}

}  // namespace
