// Appending on the GPU where the problem strings do not reach: caches of every layout, keys without
// values, heads of two sizes, many rows, page tables that lie, runs of zeros and of tiny numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gpu/check.h"
#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

using attention::AppendParams;
using attention::KvCache;
using attention::KvLayout;
using GpuAppend = Gpu;

constexpr std::int64_t kPages = 12, kPage = 16, kHeads = 2;
const std::vector<std::int64_t> kAdded = {37, 0, 5}, kLengths = {90, 3, 5};

TensorView table(CaseBuilder& builder) {
  std::vector<std::int64_t> entries;
  std::int64_t page = kPages - 1;
  for (std::int64_t length : kLengths) {
    for (std::int64_t c = 0; c < 6; ++c) {
      entries.push_back(c * kPage < length ? page-- : CaseBuilder::kNobody);
    }
  }
  return builder.indices("cache.page_table", entries, {3, 6});
}

enum class Layout { kPaged, kHeadsFirst, kFused, kBlocks, kRagged, kDenseHeadsFirst };

KvCache make_cache(CaseBuilder& builder, Layout layout, std::int64_t d, std::int64_t dv) {
  const auto tensor = [&](const char* name, std::vector<std::int64_t> shape) {
    return builder.output(name, DType::kBFloat16, std::move(shape));
  };
  switch (layout) {
    case Layout::kPaged:
      return KvCache::paged(tensor("cache.k", {kPages, kPage, kHeads, d}),
                            tensor("cache.v", {kPages, kPage, kHeads, dv}), table(builder));
    case Layout::kHeadsFirst:
      return KvCache::paged(tensor("cache.k", {kPages, kHeads, kPage, d}),
                            tensor("cache.v", {kPages, kHeads, kPage, dv}), table(builder),
                            KvLayout::kHND);
    case Layout::kFused:
      return KvCache::fused(tensor("cache", {kPages, 2, kPage, kHeads, d}), table(builder));
    case Layout::kBlocks:
      return KvCache::blocks(tensor("cache", {kPages, 2, 3, kPage, kHeads, d}), 1, table(builder));
    case Layout::kRagged:
      return KvCache::ragged(tensor("cache.k", {101, kHeads, d}),
                             tensor("cache.v", {101, kHeads, dv}),
                             builder.indices("cache.cu_kv", {2, 92, 95, 100}));
    case Layout::kDenseHeadsFirst:
      return KvCache::dense(tensor("cache.k", {3, kHeads, 96, d}),
                            tensor("cache.v", {3, kHeads, 96, dv}), KvLayout::kHND);
  }
  return {};
}

Call make_call(Layout layout, std::int64_t d, std::int64_t dv) {
  CaseBuilder builder(parse_problem("attention_append:lens=1"), CaseOptions::plain());
  const Rows rows = builder.rows(kAdded, true);
  AppendParams p;
  p.k = builder.normal("k", DType::kBFloat16, {rows.total, kHeads, d}, 0, 1);
  p.v = builder.normal("v", DType::kBFloat16, {rows.total, kHeads, dv}, 0, 1);
  builder.set_sequences(p, rows);
  p.cache = make_cache(builder, layout, d, dv);
  p.kv_lengths = builder.indices("kv_lengths", kLengths);
  return std::move(builder).finish(p);
}

// To the bit what the reference makes of them.
void check_exactly(const std::string& what, const Call& call) {
  Call expected = call;
  run(expected, "reference");
  const DeviceCall gpu(call);
  for (const char* name : {"cuda_rows", "cuda_heads"}) {
    gpu.upload(call);
    gpu.launch(name);
    const Call got = gpu.result();
    for (std::size_t i = 0; i < got.buffers.size(); ++i) {
      const Buffer& a = got.buffers[i];
      EXPECT_TRUE(std::equal(a.data(), a.data() + a.data_bytes(), expected.buffers[i].data()))
          << what << " by " << name << ": " << a.name();
      EXPECT_FALSE(a.check_guards()) << what << " by " << name;
    }
  }
}

TEST_F(GpuAppend, EveryLayout) {
  for (const Layout layout : {Layout::kPaged, Layout::kHeadsFirst, Layout::kFused, Layout::kBlocks,
                              Layout::kRagged, Layout::kDenseHeadsFirst}) {
    for (const std::int64_t d : {64, 72, 256}) {
      const std::string what =
          "layout " + std::to_string(static_cast<int>(layout)) + ", d " + std::to_string(d);
      check_exactly(what, make_call(layout, d, d));
    }
  }
}

TEST_F(GpuAppend, HeadsOfTwoSizes) {
  check_exactly("192 and 128", make_call(Layout::kPaged, 192, 128));
}

TEST_F(GpuAppend, KeysWithoutValues) {
  CaseBuilder builder(parse_problem("attention_append:lens=1"), CaseOptions::plain());
  const Rows rows = builder.rows(kAdded, true);
  AppendParams p;
  p.k = builder.normal("k", DType::kBFloat16, {rows.total, 1, 576}, 0, 1);
  builder.set_sequences(p, rows);
  const TensorView pages = builder.output("cache.k", DType::kBFloat16, {kPages, kPage, 1, 576});
  p.cache.kind = KvCache::Kind::kPaged;
  p.cache.k = pages;
  p.cache.page_table = table(builder);
  p.kv_lengths = builder.indices("kv_lengths", kLengths);
  check_exactly("576", std::move(builder).finish(p));
}

TEST_F(GpuAppend, MoreRowsThanAWarpHasLanes) {
  std::uint64_t seed = 6000;
  for (const char* rows : {"lens=1x70+9+0x40+33", "b=90,t=2,kvlen=30", "lens=0x64+1"}) {
    for (const char* types : {"io=bf16,kv=bf16", "io=f16,kv=e4m3", "io=bf16,kv=int8"}) {
      for (const bool starts : {false, true}) {
        CaseOptions options = CaseOptions::plain();
        options.starts = starts;
        check_all(std::string("attention_append:hk=2,d=64,page=16,") + rows + "," + types +
                      ",rope=halves,seed=" + std::to_string(++seed),
                  options);
      }
    }
  }
}

TEST_F(GpuAppend, ManyElementsRoundAsTheReferenceDoes) {
  std::uint64_t seed = 6500;
  for (const char* types :
       {"io=bf16,kv=e4m3", "io=f16,kv=e4m3", "io=bf16,kv=int8", "io=f16,kv=int8"}) {
    for (const char* rope : {"none", "halves", "pairs"}) {
      check_all(std::string("attention_append:hk=4,d=128,page=16,lens=300,") + types +
                    ",rope=" + rope + ",seed=" + std::to_string(++seed),
                CaseOptions{});
    }
  }
}

// Lanes without numbers, parts of heads that are rotated, several scales a head, an odd number of
// heads.
TEST_F(GpuAppend, HeadDims) {
  std::uint64_t seed = 6800;
  for (const char* dim : {"16", "32", "48", "96", "192", "256"}) {
    for (const char* types : {"io=bf16,kv=bf16", "io=bf16,kv=e4m3", "io=f16,kv=int8"}) {
      for (const char* rope : {"none", "halves", "pairs"}) {
        ++seed;
        check_all(std::string("attention_append:hk=3,page=16,lens=9+0+40,") + types + ",d=" + dim +
                      ",rope=" + rope + ",seed=" + std::to_string(seed),
                  CaseOptions::drawn(seed));
      }
    }
  }
}

// Scales of heads that hold zeros, and numbers whose scale has no reciprocal.
TEST_F(GpuAppend, ZerosAndTinyNumbers) {
  for (const char* types : {"kv=e4m3", "kv=int8"}) {
    Call call = random_call(
        parse_problem(std::string("attention_append:hk=2,d=64,page=16,lens=6,") + types),
        CaseOptions{});
    const auto& p = std::get<AppendParams>(call.params);
    for (std::int64_t d = 0; d < 64; ++d) {
      store_element(p.k, 1 * p.k.strides[0] + d, 0);
      store_element(p.v, 2 * p.v.strides[0] + d, d % 2 == 0 ? 0x1p-126 : -0x1p-130);
      store_element(p.k, 3 * p.k.strides[0] + d, 0x1p-133);
    }
    check_call(types, call);
  }
}

// Pairs of heads that fill their lanes and are rotated whole, of more than a few tokens.
TEST_F(GpuAppend, WholeHeads) {
  std::uint64_t seed = 6900;
  for (const char* heads : {"hk=2,d=256", "hk=4,d=128"}) {
    for (const char* types :
         {"io=bf16,kv=e4m3", "io=f16,kv=e4m3", "io=bf16,kv=int8", "io=f16,kv=int8"}) {
      for (const char* rope : {"halves", "pairs"}) {
        const char* rows = ++seed % 3 == 0 ? "lens=520,by=slots" : "lens=250+0+263+1";
        check_all(std::string("attention_append:page=16,") + heads + "," + rows + "," + types +
                      ",rope=" + rope + ",seed=" + std::to_string(seed),
                  seed % 4 < 2 ? CaseOptions{} : CaseOptions::drawn(seed));
      }
    }
  }
}

// Among them zeros, tiny numbers and large ones; then positions beyond the tables, which a
// reference does not take.
TEST_F(GpuAppend, WholeHeadsThatAreUnusual) {
  for (const char* types : {"kv=e4m3", "kv=int8"}) {
    for (const char* rope : {"halves", "pairs"}) {
      const std::string what = std::string(types) + ",rope=" + rope;
      Call call = random_call(
          parse_problem("attention_append:hk=2,d=128,page=16,lens=300+250," + what), CaseOptions{});
      auto& p = std::get<AppendParams>(call.params);
      for (std::int64_t d = 0; d < 128; ++d) {
        store_element(p.k, 1 * p.k.strides[0] + d, 0);
        store_element(p.v, 2 * p.v.strides[0] + d, d % 2 == 0 ? 0x1p-126 : -0x1p-130);
        store_element(p.k, 3 * p.k.strides[0] + d, 0x1p-133);
        store_element(p.k, 4 * p.k.strides[0] + d, 0x1p120);
        store_element(p.v, 5 * p.v.strides[0] + d, d == 7 ? 0x1p127 : 0);
      }
      check_call(what, call);
      p.rope.cos.shape[0] = p.rope.sin.shape[0] = 270;
      const DeviceCall gpu(call);
      gpu.launch("cuda_rows");
      const Call got = gpu.result();
      gpu.upload(call);
      gpu.launch("cuda_heads");
      const Call want = gpu.result();
      for (std::size_t i = 0; i < got.buffers.size(); ++i) {
        const Buffer &a = got.buffers[i], &b = want.buffers[i];
        if (a.name() != "cache.k" && a.name() != "cache.v") continue;
        const auto same = [](auto x, auto y) {  // but for the sign of zeros
          return x == y || ((static_cast<int>(x) | static_cast<int>(y)) & 0x7f) == 0;
        };
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.data_bytes(), b.data(), same))
            << what << ": " << a.name();
      }
    }
  }
}

// One for all, one a head, many; of few bits, whose quotients are ties, and of many.
TEST_F(GpuAppend, GivenScales) {
  std::uint64_t seed = 7000;
  for (const char* rows : {"lens=1x9+0+3", "lens=700+9"}) {
    for (const char* types : {"io=bf16,kv=e4m3", "io=f16,kv=e4m3", "io=bf16,kv=int8",
                              "io=f16,kv=int8", "io=f32,kv=int8"}) {
      for (const char* rope : {"none", "halves", "pairs"}) {
        for (int variety = 0; variety < 3; ++variety) {
          ++seed;
          check_all(std::string("attention_append:hk=3,d=64,page=16,scales=given,") + rows + "," +
                        types + ",rope=" + rope + ",seed=" + std::to_string(seed),
                    variety == 0 ? CaseOptions{} : CaseOptions::drawn(seed));
        }
      }
    }
  }
}

// Scales that are zero, infinite, NaN, negative or tiny, and numbers that they make too large.
TEST_F(GpuAppend, GivenScalesOfAnySize) {
  for (const char* types : {"kv=e4m3", "kv=int8"}) {
    for (const char* rows : {"lens=6", "lens=600"}) {
      for (double scale : {0.0, -0.25, 1e-30, 1e-44, 1e30, HUGE_VAL, std::nan("")}) {
        Call call = random_call(
            parse_problem(std::string("attention_append:hk=2,d=64,page=16,scales=given,") + rows +
                          "," + types),
            CaseOptions{});
        const auto& p = std::get<AppendParams>(call.params);
        store_element(p.cache.k_scales, 0, scale);
        store_element(p.k, 0, HUGE_VAL);
        store_element(p.v, 1, -HUGE_VAL);
        const std::string what = std::string(types) + " " + std::to_string(scale);
        if (std::isfinite(scale)) {
          check_exactly(what, call);
        } else {
          check_call(what, call);  // the sign of NaN is nobody's
        }
      }
    }
  }
}

TEST_F(GpuAppend, APageOutsideThePoolIsNotWritten) {
  for (double lie : {-1.0, 2147483647.0, static_cast<double>(kPages)}) {
    Call call = make_call(Layout::kPaged, 64, 64);
    const auto& p = std::get<AppendParams>(call.params);
    store_element(p.cache.page_table, 4, lie);  // positions 64 to 79 of row 0
    const DeviceCall gpu(call);
    for (const char* name : {"cuda_rows", "cuda_heads"}) {
      gpu.upload(call);
      gpu.launch(name);
      const Call got = gpu.result();
      for (const Buffer& buffer : got.buffers) EXPECT_FALSE(buffer.check_guards()) << name;
      const TensorView& k = std::get<AppendParams>(got.params).cache.k;
      std::int64_t written = 0;
      for_each_element(k, [&](std::int64_t, std::int64_t at) { written += !is_poison(k, at); });
      EXPECT_EQ(written, (37 - 16 + 5) * kHeads * 64) << name;
    }
  }
}

}  // namespace
}  // namespace hyla::testing
